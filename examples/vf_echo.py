"""A taskset of verifiers as a task: two tokens are named, and the answer is paid that says one of them."""

import verifiers.v1 as vf

MOVES = ["C", "D"]


class EchoData(vf.TaskData):
    """What was asked for."""

    wanted: str


class EchoTask(vf.Task[EchoData]):
    @vf.reward
    async def said(self, trace) -> float:
        return float(trace.last_reply == self.data.wanted)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class Echo(vf.Taskset[EchoTask, vf.TasksetConfig]):
    def load(self):
        for number in range(20):
            wanted = MOVES[number % 2]
            yield EchoTask(EchoData(prompt=wanted, wanted=wanted), self.config.task)


def taskset():
    return Echo(vf.TasksetConfig())
