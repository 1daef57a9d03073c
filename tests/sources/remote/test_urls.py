"""URLs: what is shown of them."""

from __future__ import annotations

import pytest

from loaderx import Dataset
from loaderx.errors import ArgumentError
from loaderx.sources.remote.store import RemoteFile
from loaderx.sources.remote.urls import file_name, is_url, public_url, without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/a.npy", "https://host/a.npy"),
        ("https://me:word@host:8080/a.npy", "https://host:8080/a.npy"),
        ("https://host/a.npy?X-Amz-Signature=word&X-Amz-Expires=60", "https://host/a.npy"),
        ("https://host/a.npy?sv=1&se=2026&sr=b&sp=r&sig=word", "https://host/a.npy"),
        ("https://host/a.npy#part", "https://host/a.npy"),
        ("s3://bucket/what?.npy", "s3://bucket/what?.npy"),
        ("abfss://container@account.dfs.core.windows.net/a", "abfss://container@account.dfs.core.windows.net/a"),
    ],
)  # fmt: skip
def test_public_urls(url, shown):
    assert public_url(url) == shown


def test_files_that_differ_in_their_query_stay_apart():
    one, other = (public_url(f"https://host/get?id={n}&token=word") for n in (1, 2))
    assert one != other
    assert "word" not in one
    assert file_name(one) == "get"


@pytest.mark.parametrize("url", ["s3://me:word@bucket/x", "ftp://me:word@host/x"])
def test_passwords_of_stores_are_refused(url):
    with pytest.raises(ArgumentError, match=r"has a password in it. Set the variables") as caught:
        Dataset.open([url, url])
    assert "word@" not in str(caught.value)


def test_messages_of_others_lose_their_secrets():
    text = "error for 'https://me:word@host/a?sig=word' (GET http://host/b)"
    assert without_secrets(text) == "error for 'https://host/a?...' (GET http://host/b)"


def test_an_identity_shows_no_address():
    file = RemoteFile("https://host/a", 3, "1", "https://me:word@host/a?sig=word")
    assert repr(file) == "RemoteFile(https://host/a, 3 bytes)"


def test_paths_that_are_no_urls():
    assert not any(map(is_url, ["a.npy", "/a/b://c", "C://a", "a:b", "://x"]))
