"""Exact prefixes: the part of a prompt that each replica has cached, from engine events (`events`) or blooms
(`bloom`).

The request's path needs two look-ups and no tokenizer. Measured: 8 us for a prompt of 86 blocks that nine of 32
replicas hold to seven different depths, 13 us for one of 5,991 blocks; with blooms 25 and 39 us.

    text blocks of the prompt -> settled token blocks (`prompt_chains`) -> replicas that hold them (`PrefixView`)

A prompt whose text is not fully known is learned off the request's path (`prompt_learner`), for the next turn. The
result covers at least what an earlier turn settled. It may be less than a replica holds, because the replica's own
answer between the two turns is missing. The order of replicas does not change, because only one replica gave that
answer.

The result is None if the pool's tokenizer is missing, no replica has reported, or the prompt cannot be known exactly
(tools, pictures, other routes than chat and completions). The gateway's own record is then used.

`functions.gateway.feeds` carries updates and requests between this module and the bus; `index` queries it.
"""

import logging
from collections.abc import Callable

from functions.api.ids import PoolName
from functions.decisions.catalogue import Catalogue
from functions.decisions.routing.request import NOT_CACHED, CachedPrompt
from functions.fleet.prefix_updates import PrefixRequest, PrefixUpdateInvalid, decode
from functions.fleet.prefix_view import PrefixView
from functions.gateway.intake.routes import HOT_ROUTES
from functions.gateway.prefix.prompt_chains import Learnt, PromptChains
from functions.gateway.prefix.prompt_learner import PromptJob, PromptLearner
from functions.gateway.prefix.tokenizer_source import TokenizerSource
from functions.gateway.request.request import Admitted

_log = logging.getLogger(__name__)


class ExactPrefixes:
    """Cached prompt tokens per replica. Owned by one event loop; `start` connects the learner's thread to it."""

    def __init__(self, tokenizers: TokenizerSource, clock: Callable[[], float]) -> None:
        self.view = PrefixView()
        self.learner = PromptLearner()
        self.tokenizers = tokenizers
        self._chains = PromptChains()
        self._clock = clock
        self._began: set[PoolName] = set()  # pools for which a full update was requested
        self.refused_total = 0  # malformed messages
        self.learnt_total = 0
        self.known_total = 0
        self.unknown_total = 0

    def start(self, call_on_loop: Callable[[Callable[[PromptJob, Learnt], None], PromptJob, Learnt], object]) -> None:
        self.learner.start(lambda job, learnt: call_on_loop(self.store_learnt, job, learnt))

    def close(self) -> None:
        self.learner.close()

    def matched(self, admitted: Admitted) -> CachedPrompt | None:
        """Return the prompt tokens that each replica holds, or None if nothing is known of this prompt; count which."""
        held = self._held(admitted)
        if held is None:
            self.unknown_total += 1
        else:
            self.known_total += 1
        return held

    def _held(self, admitted: Admitted) -> CachedPrompt | None:
        text_blocks, pool = admitted.features.text_blocks, admitted.model.pool
        block_tokens = self.view.block_tokens(pool)
        if not block_tokens or not text_blocks or admitted.route.path not in HOT_ROUTES:
            return None
        found = self._chains.deepest(text_blocks)
        if found is None or found[1] < len(text_blocks) or found[0].block_tokens != block_tokens:
            self._request(admitted, block_tokens)
        if found is None or found[0].block_tokens != block_tokens:
            return None
        learnt, shared = found
        names = learnt.names[: learnt.settled[shared - 1]]
        if not names:
            return None
        by_bloom = admitted.routing.prefix_source == "bloom"
        held = (self.view.held_by_bloom if by_bloom else self.view.held_by_events)(pool, names)
        if held is None:
            return None
        for replica_id in held.blocks:
            held.blocks[replica_id] *= block_tokens
        for replica_id in held.in_host:
            held.in_host[replica_id] *= block_tokens
        return CachedPrompt(held.blocks, held.in_host) if held.blocks else NOT_CACHED

    def _request(self, admitted: Admitted, block_tokens: int) -> None:
        output, features = admitted.route.output, admitted.features
        model_dir = self.tokenizers.directory_of(admitted.model.pool)
        if output is not None and model_dir is not None:
            self.learner.request(
                PromptJob(
                    admitted.caller.tenant,
                    admitted.model.pool,
                    admitted.model.engine_name,
                    admitted.model.is_adapter,
                    output,
                    admitted.upstream_body,
                    features.text_blocks,
                    features.text_block_bytes,
                    block_tokens,
                    model_dir,
                )
            )

    def store_learnt(self, job: PromptJob, learnt: Learnt) -> None:
        """Store and count a learned prompt. If the pool's tokenizer has changed, it is not stored: it matches none."""
        self.learnt_total += 1
        if self.tokenizers.directory_of(job.pool) == job.model_dir:
            self._chains.put(learnt)

    async def refresh_tokenizers(self, catalogue: Catalogue) -> None:
        """Fetch the tokenizers that pools need, and forget all learned prompts if a pool's tokenizer is outdated."""
        if await self.tokenizers.refresh(catalogue):
            self._chains = PromptChains()

    def receive(self, message: bytes) -> None:
        """Apply one message from the bus. Malformed messages are dropped and counted."""
        try:
            self.view.fold(decode(message), self._clock())
        except (PrefixUpdateInvalid, ValueError) as error:
            self.refused_total += 1
            _log.warning("dropped an invalid prefix message: %s", error)

    def due_requests(self, catalogue: Catalogue) -> list[PrefixRequest]:
        """Return the update requests to publish now, one for each pool whose policy needs prefix data of replicas.

        A pool's first request is to all of its replicas.
        """
        asks: list[PrefixRequest] = []
        self._began.intersection_update(catalogue.pools)
        for pool in catalogue.pools:
            source = catalogue.routing_for(pool).prefix_source
            if source != "sent":
                asks.append(
                    PrefixRequest(pool, source, self.view.unknown_replicas(pool), everyone=pool not in self._began)
                )
                self._began.add(pool)
        return asks

    def sweep(self) -> None:
        self.view.sweep(self._clock())
