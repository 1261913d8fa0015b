"""Secrets are told from what is not one."""

from __future__ import annotations

import pytest

from megads.config.tree import settings
from megads.text.secrets import hidden, is_secret_name

WANDB = "0123456789abcdef0123456789abcdef01234567"
HF = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"
AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--set wandb.api_key=abcdefgh: no setting", "--set wandb.api_key=*** no setting"),
        (f"export WANDB_API_KEY={WANDB}", "export WANDB_API_KEY=***"),
        (f"export HF_TOKEN='{HF}'", "export HF_TOKEN='***'"),
        (f'{{"token": "{HF}", "a": 1}}', '{"token": "***", "a": 1}'),
        (f"the key {HF} is wrong", "the key *** is wrong"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        (f"AWS_SECRET_ACCESS_KEY={AWS} x", "AWS_SECRET_ACCESS_KEY=*** x"),
        ("https://me:hunter22@host/path", "https://***@host/path"),
        (f"https://{WANDB}@host/path", "https://***@host/path"),
        ("s3://b/k?X-Amz-Signature=abcdef&a=1", "s3://b/k?X-Amz-Signature=***&a=1"),
        ("password: opensesame", "password: ***"),
        ("a eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N b", "a *** b"),
        ("key=AIza" + "SyA1234567890abcdefghijklmnopqrstuv", "key=***"),
        ("run xoxb-1234567890-abcdefghij", "run ***"),
        ("npm_abcdefghijklmnopqrstuvwxyz0123456789", "***"),
        ("pypi-AgEIcHlwaS5vcmcCJGFiY2RlZmdo", "***"),
        ("dckr_pat_abcdefghijklmnopqrstuvw", "***"),
        ("x -----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNza\n-----END OPENSSH PRIVATE KEY----- y", "x *** y"),
        ("-----BEGIN PRIVATE KEY----- MIIEvQIBADAN", "***"),
    ],
)
def test_secrets_are_hidden(text, shown):
    assert hidden(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "TRAIN_TOKENS=1000000 EOD_TOKENS=5 tokens_per_s=4.5e3",
        "step 1/20 | loss 6.4 | 227.8 tok/s",
        "git@github.com:some/where.git ssh://git@host/x",
        "data/monkey=4 keyboard=1234567",
        "d6d1c6a2f1b0e7c1a2b3c4d5e6f708192a3b4c5d",
        "http://host:8080/path",
        "eyJ is how base64 begins; npm_config_cache pypi-server xoxo-hugs-and-kisses AIza",
        "-----BEGIN PUBLIC KEY----- MIIEvQIBADAN",
    ],
)
def test_what_is_no_secret_stays(text):
    assert hidden(text) == text


def test_values_of_variables_with_such_a_name_are_hidden_wherever_they_are():
    env = {
        "WANDB_API_KEY": WANDB,
        "MY_SECRET": AWS,
        "KEY": "short",
        "SSH_KEY": "/home/me/.ssh/id_rsa",
        "HOME": "/home/me",
    }
    text = f"{WANDB}{AWS} short /home/me/.ssh/id_rsa"
    assert hidden(text, env) == "****** short /home/me/.ssh/id_rsa"


def test_no_setting_of_ours_has_the_name_of_a_secret():
    assert not [name for name, _ in settings() if is_secret_name(name.rpartition(".")[2])]
    names = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "DB_PASSWORD", "apikey")
    assert all(map(is_secret_name, names))
    assert not any(map(is_secret_name, ("TRAIN_TOKENS", "MONKEY", "KEYS", "PATH")))
