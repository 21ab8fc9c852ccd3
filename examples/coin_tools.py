"""Tools: which side of a coin is up is not in the prompt, but a function knows, and the agent may call it."""

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from coevolve import PolicySpec, Sampling, Trainer, fixed, grpo, tools
from coevolve.tasks import Rows

COINS = {"north": "heads", "south": "tails", "east": "tails", "west": "heads"}
ROWS = [{"coin": coin, "side": side} for coin, side in COINS.items()]


def look(coin: str) -> str:
    """Look at a coin.

    Args:
        coin: where it lies"""
    return COINS[coin]


# The vocabulary of a model so small that it learns on the spot. A call is one token, in the form of Qwen's models.
CALLS = [f'<tool_call>{{"name": "look", "arguments": {{"coin": "{coin}"}}}}</tool_call>' for coin in COINS]
WORDS = ["<unk>", "<end>", "<tools>", "<user>", "<assistant>", "<tool>", *COINS, "heads", "tails", *CALLS]
TEMPLATE = "{% if tools %}<tools>{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<assistant>{% endif %}"


def save_model(folder: Path) -> str:
    """A Llama with random weights that knows WORDS, as a transformers folder."""
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    known = Regex("<tool_call>.*?</tool_call>|<[a-z]+>|[a-z]+")
    core.pre_tokenizer, core.decoder = pre_tokenizers.Split(known, "isolated"), decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<end>", pad_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), eos_token_id=1, pad_token_id=0, **size)).save_pretrained(folder)
    return str(folder)


def trainer(model: str) -> Trainer:
    return Trainer(
        task=Rows(data=ROWS, prompts={"solver": "{coin}"}, reward=lambda solver, side: float(solver == side)),
        play=tools([look], turns=1),
        cast=fixed({"solver": "ann"}),
        policies={"ann": PolicySpec(model, learning_rate=1e-2)},
        algorithm=grpo(),
        sampling=Sampling(max_new_tokens=1),
        steps=60,
        batch_size=3,  # of the four coins one is held out
        members=16,
    )


if __name__ == "__main__":
    trainer(save_model(Path("runs/coin-model"))).run("runs/coin-tools")
