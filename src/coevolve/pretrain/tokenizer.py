"""A byte-level BPE tokenizer trained on the run's own corpus."""

from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

END, PAD, CLS = "<|endoftext|>", "<|pad|>", "<|cls|>"


def train_tokenizer(texts: Iterable[str], vocab_size: int, classifier: bool) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most `vocab_size` tokens. Its padding token is not its end of text, which is trained on.

    A classifier's tokenizer puts `<|cls|>` before each text; a language model's adds nothing.
    """
    special = [END, PAD, CLS] if classifier else [END, PAD]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if classifier:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{CLS} $A", special_tokens=[(CLS, tokenizer.token_to_id(CLS))]
        )
    make: Any = PreTrainedTokenizerFast  # untyped
    wrapped: PreTrainedTokenizerFast = make(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        cls_token=CLS if classifier else None,
        padding_side="right" if classifier else "left",
        clean_up_tokenization_spaces=False,
    )
    return wrapped
