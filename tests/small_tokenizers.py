"""Small tokenizers of the families, made here: of Llama 2 and Mistral (legacy), of SentencePiece's newer kind, of Qwen and Llama 3."""
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXT = ("def f(x):\n    return x + 1\n", "<think> reasoning </think> <answer> answer </answer>", "User: question\nAssistant: answer",
        "```python\n```input\n```output\n", "What does this Python function return for this input?",
        "0 1 2 3 4 5 6 7 8 9 [ ] ( ) { } ' \" , . : ; ! ? = + - * / < > _ | # % ` A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
        "a b c d e f g h i j k l m n o p q r s t u v w x y z")
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHATML = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
THINKS = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")        # as of R1 distills and Qwen3-Thinking


def bytes_and_pieces(specials: tuple[str, ...], merges: tuple) -> Tokenizer:
    """A vocabulary in SentencePiece's manner: pieces with a bar for a space, and bytes for what has no piece."""
    pieces = sorted({c for text in TEXT for c in text} - {" ", "\n"})
    words = [*specials, *(f"<0x{i:02X}>" for i in range(256)), "▁", "▁▁", "▁▁▁▁", *pieces]
    model = models.BPE(dict(zip(words, range(len(words)))), list(merges), unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    made = Tokenizer(model)
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in specials])
    return made


def legacy(specials: tuple[str, ...] = ("<unk>", "<s>", "</s>")) -> Tokenizer:
    """Of Llama 2: the normalizer puts a space before every stretch of text, the decoder drops a text's first."""
    made = bytes_and_pieces(specials, (("▁", "▁"), ("▁▁", "▁▁")))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return made


def metaspace(scheme: str, specials: tuple[str, ...] = ("<unk>", "<s>", "</s>")) -> Tokenizer:
    """The newer kind, which puts the space before every stretch (always) or the first one alone (first)."""
    made = bytes_and_pieces(specials, (("▁", "▁"), ("▁▁", "▁▁")))
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split=False)
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace("▁", scheme, split=False)])
    return made


def byte_level(specials: tuple[str, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")) -> Tokenizer:
    """Of Qwen and Llama 3: nothing is put before a text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                                                  pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=500, special_tokens=list(specials), show_progress=False, initial_alphabet=alphabet))
    return made


def fast(made: Tokenizer, template: str = "", **names: str):
    """As transformers has it."""
    from transformers import PreTrainedTokenizerFast
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, **names)
    wrapped.chat_template = template or None
    return wrapped


def qwen(template: str = CHATML):
    """A tokenizer as of Qwen, with a chat template."""
    return fast(byte_level(), template, eos_token="<|im_end|>")


def write_chat_base(directory, template: str = CHATML):
    """A small random base with such a tokenizer; its directory."""
    from tiny_base import write_tiny
    tokenizer = qwen(template)
    write_tiny(directory, "qwen2", vocab_size=len(tokenizer), max_position_embeddings=4096, eos_token_id=2)
    tokenizer.save_pretrained(directory)
    return directory


LLAMA = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
FAMILIES = {"legacy": lambda: fast(legacy(), CHATML, **LLAMA), "always": lambda: fast(metaspace("always"), CHATML, **LLAMA),
            "first": lambda: fast(metaspace("first"), CHATML, **LLAMA), "byte level": qwen}


