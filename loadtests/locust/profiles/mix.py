"""All profiles together: of twenty users nine chat, four use adapters, three are agents, two embed, one sends documents
and one sends batches. Without an embedding pool no user embeds."""

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
