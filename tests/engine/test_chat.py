"""Chat templates: the demo model's, and that a template from outside can do no harm."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from energyopt.core.errors import ModelFormatError, RequestError
from engine.chat import ChatTemplate
from engine.model.gguf_file import GgufFile
from engine.models import resolve_model

USER: list[Mapping[str, object]] = [{"role": "user", "content": "Hi"}]


def test_the_demo_model_speaks_first_as_its_system() -> None:
    source = GgufFile(resolve_model("smollm2-135m")).metadata["tokenizer.chat_template"]
    assert isinstance(source, str)
    template = ChatTemplate(source)
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    user = "<|im_start|>user\nHi<|im_end|>\n"
    assert template.render(USER) == system + user + "<|im_start|>assistant\n"
    assert template.render(USER, add_generation_prompt=False) == system + user
    own: list[Mapping[str, object]] = [{"role": "system", "content": "Be brief."}, *USER]
    assert template.render(own).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user")


def test_blocks_are_trimmed_and_variables_arrive() -> None:
    template = ChatTemplate(
        "{{ bos_token }}\n"
        "{% for m in messages %}\n"
        "    {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{{ m.content }}\n"
        "{% endfor %}\n"
        "{% if tools %}{{ tools | tojson }}{% endif %}{{ thinking }}",
        {"bos_token": "<s>"},
    )
    tools: list[Mapping[str, object]] = [{"name": "é<"}]
    assert template.render([*USER, *USER], tools=tools, thinking=False) == '<s>\nHi\n[{"name": "é<"}]False'
    assert template.render(USER, bos_token="<b>", thinking="") == "<b>\nHi\n"


def test_a_template_knows_the_date() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}").render(USER) >= "2026"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages[5].content.upper() }}", "refuses"),
        ("{{ messages[0].content + 3 }}", "refuses"),
        ("{{ 1 / 0 }}", "refuses"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages | nothing }}", None),
    ],
)
def test_a_refusal_is_the_clients_error(source: str, words: str | None) -> None:
    if words is None:
        with pytest.raises(ModelFormatError, match="does not compile"):
            ChatTemplate(source)
        return
    with pytest.raises(RequestError, match=words) as caught:
        ChatTemplate(source).render(USER)
    assert caught.value.param == "messages"


def test_a_broken_template_is_the_models_error() -> None:
    with pytest.raises(ModelFormatError, match="does not compile"):
        ChatTemplate("{% for %}")


CALL = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}]}
LOOP = "{% for call in messages[0].tool_calls %}{{ "


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("call.function.arguments | tojson", '{"a": 1}'),
        ("call['function']['arguments']|tojson", '{"a": 1}'),
        ("call.function.arguments", '{"a": 1}'),
        ("call.function.arguments if call.function.arguments is string else 5 | tojson", '{"a": 1}'),
    ],
)
def test_arguments_are_written_once_whatever_the_template_expects(shown: str, text: str) -> None:
    assert ChatTemplate(f"{LOOP}{shown} }}}}{{% endfor %}}").render([CALL]) == text


def test_arguments_that_are_no_json_are_shown_as_they_came() -> None:
    broken = {"tool_calls": [{"function": {"arguments": "{"}}, "x", {"function": None}]}
    template = ChatTemplate("{{ messages[0].tool_calls | length }}{# arguments | tojson #}")
    assert template.render([broken]) == "3"
