"""A game of PettingZoo as a task: a leader moves, a follower sees the move, and both are paid if they agree."""

from gymnasium.spaces import Discrete, Text
from pettingzoo import AECEnv

MOVES = ["C", "D"]


class Follow(AECEnv):
    """Two moves a game; the leader is paid a little more for C."""

    metadata = {"name": "follow"}  # noqa: RUF012
    possible_agents = ["leader", "follower"]  # noqa: RUF012

    def action_space(self, agent):
        return Discrete(len(MOVES))

    def observation_space(self, agent):
        return Text(4)

    def reset(self, seed=None, options=None):
        self.agents, self.moves = list(self.possible_agents), ""
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = "leader"

    def observe(self, agent):
        return "c" + self.moves  # the model of the recipe knows the tokens c, d, C and D alone

    def step(self, action):
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self.moves += MOVES[action]
        if len(self.moves) == 2:
            agree = float(self.moves[0] == self.moves[1])
            self.rewards = {"leader": 4 * agree + (self.moves == "CC"), "follower": 4 * agree}
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = "follower" if self.agent_selection == "leader" else "leader"
        self._accumulate_rewards()
