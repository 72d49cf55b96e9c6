"""Secrets in texts by name, by form and in URLs; the time that a text of strangers can cost."""

import time

import pytest

from howdah import redact

SHOWN = [
    "jdbc:db2://h:50000/db:password=planted;",
    "jdbc:teradata://h/PASSWORD=planted",
    "jdbc:sqlserver://h:1433;user=u;password={p;planted};encrypt=true",
    "jdbc:sqlserver://h;password={a}}planted}",
    "jdbc:exotic://h:1/planted;user=u",
    "Authorization: Bearer planted",
    "authorization: Basic cGxhbnRlZA-planted",
    "{'Authorization': 'Bearer planted'}",
    '{"Authorization": "Bearer planted"}',
    '{\\"password\\": \\"planted\\"}',
    "curl -H 'X-Api-Key: planted' https://h/",
    "Bearer planted0planted",
    "password: planted",
    "passwd = planted",
    "mysql --password planted -h db",
    "tool --db-password 'planted too'",
    "ssl.keystore.pass=planted",
    "javax.net.ssl.trustStorePassword=planted",
    'password="unclosed planted',
    "https://user@domain:planted@host/x",
    "s3://AKID:pla/nted+planted@bucket/x",
    "mongodb://u:planted@h1:1,h2:2/x",
    "https://hooks.slack.com/services/T0/B0/planted",
    "posted to (hooks.slack.com/workflows/planted)",
    "https://discord.com/api/webhooks/1/planted",
    "https://contoso.webhook.office.com/webhookb2/planted",
    "https://chat.googleapis.com/v1/spaces/A/messages?key=k&token=planted",
    "Max retries exceeded with url: /webhdfs/v1/x?delegation=planted&op=OPEN (Caused by",
    "-----BEGIN RSA PRIVATE KEY-----\nplanted\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nplanted without an end",
]


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_hidden(text):
    redacted = redact.text(f"it failed: {text}")
    assert "planted" not in redacted and redact.LEFT_OUT in redacted
    assert redact.text(redacted) == redacted
    assert list(redact.find("a.key", text)), "the form must not take it either"


FORMS = {
    "aws-access-token": ["AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE"],
    "anthropic and openai": ["sk-" + "proj-a1B2" * 6],
    "age-secret-key": ["AGE-SECRET-KEY-1" + "Q" * 58],
    "databricks-api-token": ["dapi" + "0a" * 16],
    "digitalocean-pat": ["dop_v1_" + "0a" * 32],
    "discord-webhook": ["https://ptb.discordapp.com/api/webhooks/1/x"],
    "gcp-api-key": ["AIza" + "a-B_1" * 7],
    "github": ["ghp_" + "a1B2" * 9, "github_pat_" + "a1_B2" * 8],
    "gitlab": ["glpat-" + "a1-B2" * 4],
    "google chat webhook": ["https://chat.googleapis.com/v1/spaces/A/messages?x=1"],
    "grafana": ["glsa_" + "a1B2" * 8 + "_0a0a0a0a"],
    "hashicorp vault": ["hvs." + "a1-B" * 8],
    "huggingface-access-token": ["hf_" + "aB1c" * 8],
    "jwt": ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"],
    "microsoft-teams-webhook": ["https://a-b.webhook.office.com/webhookb2/x"],
    "npm-access-token": ["npm_" + "a1B2" * 9],
    "pypi-upload-token": ["pypi-AgEIcHlwaS5vcmc" + "a1-B" * 15],
    "sendgrid-api-token": ["SG." + "a1" * 11 + "." + "b-2" * 14 + "c"],
    "slack": ["xoxb-123456789012-abcDEF", "xapp-1-A0123-456-0a0a"],
    "slack-webhook-url": ["https://hooks.slack.com/services/T/B/x"],
    "stripe-access-token": ["sk_live_" + "a1B2" * 5],
    "telegram-bot-api-token": ["123456789:AA" + "a-B1c" * 6 + "xyz"],
    "twilio-api-key": ["SK" + "0a" * 16],
}


def test_every_form_has_an_example_and_hides_it_whole():
    assert set(FORMS) == set(redact.TOKENS)
    for name, examples in FORMS.items():
        for example in examples:
            assert redact.text(f"got {example} here") == f"got {redact.LEFT_OUT} here", name


@pytest.mark.parametrize(
    "text",
    [
        "Bearer authentication is needed",
        "the file of tokens has no usable token: line 2 is shorter",
        "expected: Bearer and a token of serve.token_file",
        "--set serve.token_file=FILE: requests need one of its tokens",
        "token=None, password: null",
        "hdfs://nn:8020/a:b@c and http://127.0.0.1:8000/v1/classify",
        "/data/token=abc/part-0",
        "jdbc:postgresql://127.0.0.1:5432/news?sslmode=verify-full",
        "hadoop.security.authorization is true",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "pass 3 of 4, 10 passed, bypass: none",
    ],
)
def test_what_stays(text):
    assert redact.text(text) == text


@pytest.mark.parametrize(
    "part",
    ["://a:", "://", "://a:@", "jdbc:oracle:a:b/", 'password="', "password: ", "Bearer ", "a.b-",
     "-----BEGIN RSA PRIVATE KEY-----", "--a-", "{'a", "eyJ", "=", " "],
)  # fmt: skip
def test_the_time_grows_with_the_text_alone(part):
    """100 kB took a minute where a rule began anew at every character. The limit is a hang's."""
    text = (part * 100_000)[:100_000] + "@"
    began = time.process_time()
    redact.text(text)
    list(redact.find("a.key", text))
    assert time.process_time() - began < 20
