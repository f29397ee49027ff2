"""Secrets of each kind are masked wherever they stand, and what only looks like one is left alone."""

from __future__ import annotations

import base64
import json
import random
import string

import pytest

from proto.errors import InvalidParams
from services.transcripts.main import _made, prepare, read_settings, redactor_of
from services.transcripts.redaction import RULES, Redactor, Rule

_chance = random.Random(5)


def some(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """A text as a token has it: with a digit and a letter at least."""
    return "a1" + "".join(_chance.choice(alphabet) for _ in range(count - 2))


HEX = "0123456789abcdef"
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "\n".join(base64.b64encode(_chance.randbytes(48)).decode() for _ in range(12))
    + "\n-----END RSA PRIVATE KEY-----"
)

SECRETS = {
    "private-key": PEM,
    "age-key": "AGE-SECRET-KEY-1" + some(58, string.ascii_uppercase).upper(),
    "aws-access-key": "AKIA" + some(16, string.ascii_uppercase).upper(),
    "github-token": "ghp_" + some(36),
    "gitlab-token": "glpat-" + some(20),
    "anthropic-key": "sk-ant-api03-" + some(90),
    "openai-key": "sk-proj-" + some(48),
    "google-api-key": "AIza" + some(35),
    "google-oauth-token": "ya29." + some(60),
    "google-oauth-secret": "GOCSPX-" + some(28),
    "slack-token": "xoxb-" + some(12, string.digits) + "-" + some(24),
    "slack-webhook": "https://hooks.slack.com/services/T00000000/B00000000/" + some(24),
    "discord-webhook": "https://discord.com/api/webhooks/123456789012345678/" + some(60),
    "discord-token": "M" + some(23) + "." + some(6) + "." + some(38),
    "telegram-token": "123456789:AA" + some(33),
    "stripe-key": "sk_live_" + some(24),
    "npm-token": "npm_" + some(36),
    "pypi-token": "pypi-AgEIcHlwaS5vcmc" + some(60),
    "huggingface-token": "hf_" + some(34),
    "sendgrid-key": "SG." + some(22) + "." + some(43),
    "twilio-key": "SK" + some(32, HEX),
    "mailgun-key": "key-" + some(32, HEX),
    "digitalocean-token": "dop_v1_" + some(64, HEX),
    "databricks-token": "dapi" + some(32, HEX),
    "shopify-token": "shpat_" + some(32, HEX),
    "linear-key": "lin_api_" + some(40),
    "notion-token": "ntn_" + some(46),
    "vault-token": "hvs." + some(90),
    "groq-key": "gsk_" + some(52),
    "xai-key": "xai-" + some(80),
    "azure-key": "AccountKey=" + some(86) + "==",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + some(43),
    "authorization": "Authorization: Bearer " + some(40),
    "api-key-header": "x-api-key: " + some(32),
    "url-password": "postgres://admin:correct-horse-battery@db.example.org/prod",
    "url-key": "https://maps.example.org/v1?key=" + some(30),
    "quoted-secret": 'DB_PASSWORD = "correct-horse-battery"',
    "assigned-secret": "export AWS_SECRET_ACCESS_KEY=" + some(40),
    "netrc-password": "machine example.org login me password opensesame",
    "dotted-key": "sk-ws-" + some(8) + "01." + some(24),
    "aws-secret": "aws configure set aws_secret_access_key " + some(38) + "01",
    "sshpass-password": "sshpass -p opensesame ssh me@example.org",
}

TOLD = {
    "azure-key": "AccountKey=",
    "authorization": "Authorization: Bearer ",
    "api-key-header": "x-api-key: ",
    "url-password": "postgres://admin:",
    "url-key": "https://maps.example.org/v1?key=",
    "quoted-secret": 'DB_PASSWORD = "',
    "assigned-secret": "export AWS_SECRET_ACCESS_KEY=",
    "netrc-password": "machine example.org login me password ",
    "aws-secret": "aws configure set aws_secret_access_key ",
    "sshpass-password": "sshpass -p ",
}
"""What stands before the secret and may stay."""


def test_every_rule_has_its_case() -> None:
    assert SECRETS.keys() == {rule.name for rule in RULES}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_of_each_kind_is_masked(name: str) -> None:
    text = f"Here it is, keep it safe:\n{SECRETS[name]}\nand now run the tests."
    masked = Redactor().text(text)
    assert SECRETS[name].removeprefix(TOLD.get(name, "")).split("@")[0].split(" ssh ")[0] not in masked
    assert "[redacted:" in masked
    assert masked.startswith("Here it is, keep it safe:\n" + TOLD.get(name, ""))
    assert masked.endswith("\nand now run the tests.")


@pytest.mark.parametrize("name", SECRETS)
def test_masked_text_is_not_masked_again(name: str) -> None:
    redactor = Redactor()
    masked = redactor.text(SECRETS[name])
    assert redactor.text(masked) == masked


def test_a_private_key_is_masked_inside_json_and_where_its_end_is_missing() -> None:
    escaped = json.dumps({"key": PEM})
    assert Redactor().text(escaped) == '{"key": "[redacted:private-key]"}'
    cut = PEM[:400]
    assert Redactor().text(cut) == "[redacted:private-key]"


def test_secrets_far_into_a_long_text_are_masked() -> None:
    words = " ".join(some(_chance.randrange(3, 14), string.ascii_letters + "-_./=:") for _ in range(20_000))
    masked = Redactor().text(f"{words} {SECRETS['github-token']} {words}")
    assert SECRETS["github-token"] not in masked
    assert "[redacted:github-token]" in masked


@pytest.mark.parametrize(
    "text",
    [
        "password = getpass.getpass('Password: ')",
        "token = os.environ['GITHUB_TOKEN']",
        'api_key="YOUR_API_KEY"',
        'api_key: "<your key here>"',
        "The secret of good code: small functions.",
        "const token = await fetchToken(userId)",
        "max_tokens = 4096",
        'password: "********"',
        "SECRET_KEY=${SECRET_KEY}",
        "a basic internationalization of the token authentication",
        "https://example.org/a/b?page=2&sort=name",
        "git@github.com:linckia/linckia.git",
        "sha256:9cfb4f1a7ef167a89ffadd1d0915cb8315c2c15dd35272fdacccd0a8389ef76a",
        "commit 1b6311a761b81b1a410cb8cf62c414caf693f788",
        "uuid 123e4567-e89b-12d3-a456-426614174000",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert Redactor().text(text) is text


def test_arguments_of_tools_are_masked_by_their_names_too() -> None:
    given = {"user": "me", "password": "swordfish", "nested": [{"apiKey": "swordfish"}], "token": "", "max_tokens": 5}
    masked = Redactor().json(given)
    hidden = "[redacted:assigned-secret]"
    assert masked == {"user": "me", "password": hidden, "nested": [{"apiKey": hidden}], "token": "", "max_tokens": 5}


def test_custom_rules_are_applied_and_others_can_be_switched_off() -> None:
    settings = read_settings(
        {
            "redact_rules": [
                {"name": "employee", "pattern": r"\bEMP-\d{6}\b"},
                {"name": "pin", "pattern": r"\bPIN (?P<secret>\d{4})"},
            ],
            "redact_skip": ["github-token"],
        }
    )
    redactor = redactor_of(settings)
    assert redactor is not None
    assert redactor.text("EMP-123456 has PIN 1234") == "[redacted:employee] has PIN [redacted:pin]"
    assert redactor.text(SECRETS["github-token"]) == SECRETS["github-token"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"redact_rules": [{"name": "broken", "pattern": "("}]},
            r"redact_rules\[0\]\.pattern is not a regular expression",
        ),
        (
            {"redact_rules": [{"name": "backwards", "pattern": "(?<=a)b"}]},
            r"redact_rules\[0\]\.pattern is not a regular expression \(RE2\): .*\(\?<",
        ),
        ({"redact_skip": ["github"]}, "there is no rule 'github'"),
        ({"redact": "yes"}, "redact"),
        ({"redcat": True}, "redcat"),
    ],
)
def test_a_setting_that_is_wrong_is_named(settings: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidParams, match=said):
        redactor_of(read_settings(settings))


def test_rules_compiled_by_a_standby_are_used_for_the_same_settings_only() -> None:
    given = {"redact_rules": [{"name": "employee", "pattern": r"\bEMP-\d{6}\b"}]}
    prepare(given)
    made = _made.cache_info().misses
    assert redactor_of(read_settings(given)) is not None
    assert _made.cache_info().misses == made
    assert redactor_of(read_settings(given)) is redactor_of(read_settings(given))
    other = redactor_of(read_settings({**given, "redact_skip": ["github-token"]}))
    assert other is not None
    assert other.text(SECRETS["github-token"]) == SECRETS["github-token"]
    assert other.text("EMP-123456") == "[redacted:employee]"
    plain = redactor_of(read_settings({}))
    assert plain is not None
    assert plain.text("EMP-123456") == "EMP-123456"


def test_switched_off_nothing_is_masked() -> None:
    assert redactor_of(read_settings({"redact": False})) is None


def test_the_prefilter_of_a_rule_misses_nothing_that_the_rule_finds() -> None:
    for rule in RULES:
        alone = Redactor(skip=[other.name for other in RULES if other.name != rule.name])
        assert alone.text(SECRETS[rule.name]) != SECRETS[rule.name], rule.name
    assert Redactor(more=[Rule("x", r"b{9}")]).text("abbbbbbbbb") == "a[redacted:x]"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("key sk-ws-H.EMPY4ONXQ7RT2.abcdefgh-IJKL_mnop12.", "key [redacted:dotted-key]."),
        ("sk-or-v1-0123456789abcdef.0123456789", "[redacted:dotted-key]"),
        ("aws_session_token: " + "IQoJb3JpZ2luX2VjE" * 3 + "A42", "aws_session_token: [redacted:aws-secret]"),
        (
            '"aws_secret_access_key", "abcdEFGH0123/+abcdEFGH"',
            '"aws_secret_access_key", "[redacted:aws-secret]"',
        ),
        ("sshpass -p 'open sesame' ssh me@host", "sshpass -p '[redacted:sshpass-password]' ssh me@host"),
        (
            '{"c": "sshpass -p \\"open sesame\\" ssh"}',
            '{"c": "sshpass -p \\"[redacted:sshpass-password]\\" ssh"}',
        ),
        ("sshpass -popen123 scp a b", "sshpass -p[redacted:sshpass-password] scp a b"),
    ],
)
def test_keys_with_dots_and_secrets_after_a_space_are_masked(text: str, masked: str) -> None:
    assert Redactor().text(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "pip install sk-learn.readthedocs-extension and see sk-learn.readthedocs.io/en/0.24",
        "set aws_secret_access_key in the environmentVariables of the task",
        'sshpass -p "$SSHPASS" ssh me@host',
        "sshpass -e ssh me@host",
        "sshpass -p <password> ssh me@host",
    ],
)
def test_words_that_resemble_keys_are_left_alone(text: str) -> None:
    assert Redactor().text(text) == text
