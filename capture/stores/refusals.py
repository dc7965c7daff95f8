"""Turns the driver's errors into one sentence that says what happened and what to do."""

from __future__ import annotations

import re
from typing import NamedTuple

from capture.errors import StoreError, StoreFullError, StoreUnreadableError
from capture.stores.address import CREDENTIALS, SCHEMES, Address

NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"}
NO_CREDENTIALS = {
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired",
    "AuthenticationFailed", "AuthorizationFailure", "InvalidAuthenticationInfo", "NoAuthenticationInformation",
}  # fmt: skip
CLOCK = {"RequestTimeTooSkewed", "RequestExpired"}
REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
FULL = {"XMinioStorageFull", "QuotaExceeded", "InsufficientStorage", "InsufficientCapacity", "AccountQuotaExceeded"}

# Only the text of the driver's error holds the server's answer: the status, and the code in the body.
_STATUS = re.compile(r"status code: (\d{3})|\(code: (\d{3})\)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_METADATA_SERVICE = re.compile(r"/latest/(api/token|meta-data)|/computeMetadata/|/metadata/identity")
_QUERY = re.compile(r"\?\S*")


class Answer(NamedTuple):
    """A server's answer: the HTTP status, or 0 without an answer, and the code of S3 or Azure, or ""."""

    status: int
    code: str


def answer(error: BaseException) -> Answer:
    """Return the server's answer, read from the driver's error."""
    status, code = _STATUS.search(str(error)), _CODE.search(str(error))
    return Answer(int(status[1] or status[2]) if status else 0, code[1] if code else "")


def refusal(error: BaseException, action: str, address: Address) -> StoreError:
    """Return an error that says what is wrong, what was done ("writing a/b") and what to do. It shows no secret."""
    kind, what, advice = _explain(error, address)
    what = f"{what[:-1]}, while {action})" if what.endswith(")") else f"{what} (while {action})"
    return kind(f"{what}: {advice}" if advice else what)


class _Finding(NamedTuple):
    """What is wrong, and what the operator can do: the parts of an error's message."""

    kind: type[StoreError]
    what: str
    advice: str = ""


def _explain(error: BaseException, address: Address) -> _Finding:
    status, code = answer(error)
    codes = f"{status} {code}".strip()
    where, text = address.url, str(error)
    what, credentials = SCHEMES[address.scheme], CREDENTIALS[address.scheme]
    if _METADATA_SERVICE.search(text):  # the driver's last attempt to find credentials
        return _Finding(StoreUnreadableError, f"{where}: no credentials were found", f"set {credentials}")
    if code in NO_BUCKET or (status == 404 and not code) or isinstance(error, FileNotFoundError):
        missing = f"{where}: there is no {what} {address.bucket!r}"
        return _Finding(StoreUnreadableError, missing, "create it, or correct the URL")
    if code in NO_CREDENTIALS or status == 401:
        return _Finding(StoreUnreadableError, f"{where} refused our credentials ({codes})", f"check {credentials}")
    if code in CLOCK:
        wrong = f"{where} reports that this machine's clock is wrong ({codes})"
        return _Finding(StoreUnreadableError, wrong, "set the clock")
    if code in REGION or "BareRedirect" in text:
        elsewhere = f"{where}: the {what} is in another region ({codes or 'redirected'})"
        return _Finding(StoreUnreadableError, elsewhere, "set region, or AWS_REGION")
    if status == 403:
        rights = "give these credentials the right to read, write, list and delete"
        return _Finding(StoreUnreadableError, f"{where} does not allow it ({codes})", rights)
    if code in FULL or status == 507:
        return _Finding(StoreFullError, f"{where} is full ({codes})", "free space there")
    if status:
        return _Finding(StoreError, f"{where} answered {codes}", "see the store's log")
    return _describe_unanswered(error, where, text, address)


def _describe_unanswered(error: BaseException, where: str, text: str, address: Address) -> _Finding:
    """Return what is wrong with a request that the server did not answer."""
    if isinstance(error, TimeoutError):
        return _Finding(
            StoreError,
            f"{where} did not answer within {address.timeout:g} s, or longer for a large object",
            "is it overloaded or unreachable? Raise timeout if it is only slow",
        )
    if "BadScheme" in text:
        advice = "use https, or set plain_http = true in [store]"
        return _Finding(StoreUnreadableError, f"{where}: its endpoint is not encrypted", advice)
    if "InvalidContentType" in text:
        advice = "correct it, or use http and plain_http = true"
        return _Finding(StoreUnreadableError, f"{where}: its endpoint does not use TLS", advice)
    if "InvalidCertificate" in text:
        return _Finding(
            StoreUnreadableError,
            f"{where}: its certificate is not trusted ({_certificate(text)})",
            "set ca to its authority's PEM file, or correct the endpoint's name",
        )
    if "kind: Connect" in text:
        reason = "its name is not known" if "dns error" in text else "no process listens there, or a firewall blocks it"
        return _Finding(StoreError, f"{where} can't be reached ({reason})", "check the endpoint, and that it runs")
    said = _QUERY.sub("", text.splitlines()[0] if text else type(error).__name__)
    return _Finding(StoreError, f"{where}: {said}")


def _certificate(text: str) -> str:
    found = re.search(r"InvalidCertificate\(\s*(\w+)", text)
    return found[1] if found else "unknown"
