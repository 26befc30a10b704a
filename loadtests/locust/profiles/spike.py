"""A spike: chat at the usual load, five times as many users within 30 s, then the usual load again.

Entries are named by phase: before, spike, after.
"""

from typing import ClassVar

from locust import LoadTestShape

from loadtests.locust import hooks
from loadtests.locust.profiles import chat


class SpikeUser(chat.ChatUser):
    think_s = (0.3, 1.0)

    def name_of_entry(self) -> str:
        return hooks.spike(self.environment).phase(hooks.elapsed_s(self.environment))


class FiveTimes(LoadTestShape):
    use_common_options: ClassVar[bool] = True

    def tick(self) -> tuple[int, float] | None:
        assert self.runner is not None
        return hooks.spike(self.runner.environment).load(self.get_run_time())
