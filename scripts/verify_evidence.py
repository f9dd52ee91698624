"""Checks the chain of an MHS evidence bundle with the Python standard library and nothing else.

    python verify_evidence.py BUNDLE.json [PUBLIC_KEY]

Exit code 0: every digest, link and number is right; 1: one line for each that is not; 2: the file is no bundle.
With PUBLIC_KEY (base64, as the endpoint's descriptor showed it) every receipt must be covered by a signature of that
key; without it the bundle's own key is taken. Signatures are checked where the package cryptography is installed.
It does not check the receipts against receipt.schema.json: `mhsctl evidence --verify --file BUNDLE.json` does.
"""

import base64
import hashlib
import json
import sys
from decimal import Decimal


def jcs(value):
    """The canonical JSON of RFC 8785, as text."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(f"{jcs(key)}:{jcs(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(jcs, value)) + "]"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number(value)
    return json.dumps(value, ensure_ascii=False)


def number(value):
    """A number as ECMAScript writes it; ValueError for one that has no canonical form."""
    if isinstance(value, int) and abs(value) > 2**53 - 1:
        raise ValueError("an integer lies beyond 2^53-1")
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if not isinstance(exponent, int):
        raise ValueError("NaN and infinities have no canonical form")
    text, point = "".join(map(str, digits)), len(digits) + exponent
    if not value:
        return "0"
    if len(text) <= point <= 21:
        plain = text.ljust(point, "0")
    elif 0 < point <= 21:
        plain = f"{text[:point]}.{text[point:]}"
    elif -6 < point <= 0:
        plain = "0." + "0" * -point + text
    else:
        plain = text[0] + ("." + text[1:] if len(text) > 1 else "") + f"e{point - 1:+d}"
    return "-" * sign + plain


def digest(value, prev_digest=""):
    return "sha256:" + hashlib.sha256((jcs(value) + prev_digest).encode()).hexdigest()


def own_digest(receipt, prev_digest):
    """The digest that a receipt's content has after `prev_digest`; None where it has no canonical form."""
    body = {name: value for name, value in receipt.items() if name != "evidence"}
    if body.get("replayed") is True:
        # The answer to a repeated command says true; the chain holds every receipt with false.
        body["replayed"] = False
    try:
        return digest(body, prev_digest)
    except ValueError:
        return None


def problems(bundle):
    """One sentence for each thing that is wrong with the chain of a bundle."""
    info, last = bundle["endpoint_info"], None
    genesis = info["genesis_digest"]
    if "genesis" in info and digest(info["genesis"]) != genesis:
        yield "endpoint_info.genesis does not have the stated genesis_digest"
    if "genesis" in info and info["genesis"].get("endpoint_id") != info.get("endpoint_id"):
        yield "endpoint_info.endpoint_id is not that of the genesis record"
    for place, receipt in enumerate(bundle["receipts"], 1):
        evidence = receipt.get("evidence") if isinstance(receipt, dict) else None
        try:
            seq, prev_digest, stated = (evidence[name] for name in ("seq", "prev_digest", "digest"))
            right = own_digest(receipt, prev_digest) == stated
        except (KeyError, TypeError):
            yield f"entry {place} of receipts has no usable evidence member"
            continue
        checkpoint = info.get("checkpoint") if last is None else None
        if checkpoint and checkpoint["seq"] == seq - 1 and checkpoint["digest"] != prev_digest:
            yield f"seq {seq}: prev_digest is not the digest of endpoint_info.checkpoint"
        if seq == 1 and prev_digest != genesis:
            yield "seq 1: prev_digest is not the genesis digest"
        if last and not (bundle.get("selection") and seq > last["seq"] + 1):
            if seq != last["seq"] + 1:
                yield f"seq {seq} follows seq {last['seq']}"
            elif prev_digest != last["digest"]:
                yield f"seq {seq}: prev_digest is not the digest of the receipt before"
        if not right:
            yield f"seq {seq}: the receipt does not have the digest that it states"
        last = evidence
    if bundle["head_digest"] != (last["digest"] if last else genesis):
        yield "head_digest is not the digest of the last receipt"


def signature(bundle, expected_key):
    """(what is wrong with the signed head, one sentence on it otherwise); the first is None where nothing is."""
    signed, info, receipts = bundle.get("signature"), bundle["endpoint_info"], bundle["receipts"]
    if signed is None:
        return ("there is no signature" if expected_key else None), "not signed"
    if expected_key not in (None, signed["public_key"]):
        return "it is signed with another key than the one expected", None
    chain = {0: info["genesis_digest"]}
    chain.update((each["evidence"]["seq"], each["evidence"]["digest"]) for each in receipts)
    if chain.get(signed["seq"]) != signed["digest"]:
        return f"the receipt at the signed head, seq {signed['seq']}, has another digest or is missing", None
    unsigned = max(chain) - signed["seq"]
    if expected_key and unsigned:
        return f"{unsigned} receipts after the signed head are not covered", None
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        if expected_key:
            return "the signature cannot be checked without the package cryptography", None
        return None, "signature not checked: the package cryptography is not installed"
    text = {name: signed[name] for name in ("seq", "digest", "signed_at")} | {"type": "mhs-signed-head"}
    text |= {name: info[name] for name in ("endpoint_id", "genesis_digest")}
    key, value = (base64.b64decode(signed[name], validate=True) for name in ("public_key", "value"))
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(value, jcs(text).encode())
    except InvalidSignature:
        return "the signature is not of that key", None
    return None, f"signed through seq {signed['seq']} by {signed['public_key']}"


def unique(pairs):
    if len(dict(pairs)) != len(pairs):
        raise ValueError("an object has a key twice")
    return dict(pairs)


def main(argv):
    if len(argv) not in (1, 2):
        print("usage: python verify_evidence.py BUNDLE.json [PUBLIC_KEY]", file=sys.stderr)
        return 2
    try:
        with open(argv[0], encoding="utf-8") as file:
            bundle = json.load(file, object_pairs_hook=unique)
        found = list(problems(bundle))
        wrong, said = signature(bundle, argv[1] if len(argv) == 2 else None)
        found += [f"signature: {wrong}"] if wrong else []
        count = len(bundle["receipts"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        print(f"{argv[0]}: no evidence bundle: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print("\n".join(found) if found else f"valid: {count} receipts, head {bundle['head_digest']}\n{said}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
