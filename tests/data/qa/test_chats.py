import pytest

from megads.data.chat.conversations import ASSISTANT, USER, Conversation, Message
from megads.data.chat.encoding import ChatEncoder
from megads.data.chat.examples import ExampleMaker, find_template
from megads.data.qa.chats import chat_tokens
from megads.data.qa.questions import Question
from megads.errors import ConfigError
from tests.data.chat.tiny import tokenizer_of, write_tokenizer

CONTEXTS = ("title: one, source: Paris is", "title: two, source: two")
QUESTION = Question("What is the capital?", ("Paris",), CONTEXTS, "f:1")
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ '\\n' }}{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{{ '\\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizer_of(write_tokenizer(tmp_path_factory.mktemp("tokenizer"), TEMPLATE))


@pytest.mark.parametrize("name", ["instruct-retro", "chatml", "plain", "llama-3", "auto"])
def test_a_prompt_is_what_training_has_in_front_of_the_answer(name, tokenizer):
    template = find_template(name, tokenizer)
    for contexts in (0, 1, 2):
        messages = (Message(USER, QUESTION.text), Message(ASSISTANT, "Paris", counts=True))
        chat = Conversation(messages, QUESTION.contexts[:contexts], "f:1")
        example = ExampleMaker(tokenizer, template, 4096)(chat)
        trained = [int(each) for each in example.tokens]
        first = next(place for place, label in enumerate(example.labels) if label >= 0)
        found = chat_tokens(QUESTION, template, ChatEncoder(tokenizer), 4096, contexts)
        assert found == trained[: first + 1]


def test_contexts_lose_words_at_their_end(tokenizer):
    template, encode = find_template("instruct-retro", tokenizer), ChatEncoder(tokenizer)
    whole, bare = (chat_tokens(QUESTION, template, encode, 4096, count) for count in (2, 0))
    lengths = set()
    for room in range(len(bare), len(whole) + 1):
        found = chat_tokens(QUESTION, template, encode, room, 2)
        assert len(found) <= room
        assert found[-4:] == bare[-4:]
        lengths.add(len(found))
    assert {len(bare), len(whole)} < lengths
    with pytest.raises(ConfigError, match=rf"f:1: the question has {len(bare)} tokens in its chat, and 3 fit"):
        chat_tokens(QUESTION, template, encode, 3, 2)
