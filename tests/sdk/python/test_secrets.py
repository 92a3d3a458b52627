"""Secrets."""

import e2b
import pytest

from support import unique


@pytest.fixture
def secret(api):
    info = api.Secret.create(unique("secret"), "value-1", metadata={"a": "1"})
    yield info
    api.Secret.destroy(info.name)


def test_create(secret) -> None:
    assert secret.secret_id and secret.version >= 1 and secret.metadata == {"a": "1"}


def test_get_info(api, secret) -> None:
    assert api.Secret.get_info(secret.name).secret_id == secret.secret_id
    with pytest.raises(e2b.SecretNotFoundException):
        api.Secret.get_info(unique("absent"))


def test_update(api, secret) -> None:
    changed = api.Secret.update(secret.name, "value-2", metadata={"b": "2"})
    assert changed.version > secret.version and changed.metadata == {"b": "2"}


def test_list(api, secret) -> None:
    paginator = api.Secret.list(limit=1)
    names: set[str] = set()
    while paginator.has_next:
        names |= {info.name for info in paginator.next_items()}
    assert secret.name in names


def test_exists_and_destroy(api) -> None:
    name = unique("secret")
    assert not api.Secret.exists(name)
    api.Secret.create(name, "value")
    assert api.Secret.exists(name)
    assert api.Secret.destroy(name) and not api.Secret.destroy(name)


def test_placeholders(api) -> None:
    """Made by the SDK without a server."""
    assert "name" in e2b.Secret.fill("name")
    assert e2b.Secret.iam_token(audience="audience", token_type="JWT-SVID")
