"""Everything at once: of twenty users nine chat, four ask adapters, three are agents, two embed, one reads documents
and one sends batches. Where no pool embeds, nobody does."""

from loadtests.locust.profiles import adapters, agents, batch, chat, embeddings, long_prompts


class Chatting(chat.ChatUser):
    weight = 9


class Asking(adapters.AdapterUser):
    weight = 4


class Working(agents.AgentUser):
    weight = 3


class Embedding(embeddings.EmbeddingUser):
    weight = 2


class Reading(long_prompts.DocumentUser):
    weight = 1


class Batching(batch.BatchUser):
    weight = 1
