"""request_features: how many KV tokens a request will hold."""

from functions.decisions.request.features import RequestFeatures
from functions.decisions.request.length_model import LengthModel


def test_worked_example_of_the_prologue() -> None:
    lengths = LengthModel()
    for _ in range(100):
        lengths.learn_answer("acme/bot", "acme", 300, cut=False)
    learnt = lengths.output_tokens("acme/bot", "acme")
    assert 300 <= learnt <= 315, "at most 5 % too many"
    features = RequestFeatures(3600, 900, False, 4096, min(4096, 300))
    assert features.kv_tokens == 1200
