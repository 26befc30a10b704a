"""Keys and signatures for the tests: made with the library that signers use."""

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from model_signing import hashing, signing

from functions.artifacts.signatures import SIGNATURE_NAME


def make_key(directory: Path, name: str = "signer") -> tuple[Path, Path]:
    """A fresh key pair: the private file and the public one."""
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = directory / f"{name}.key", directory / f"{name}.pub"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def sign(directory: Path, private_key: Path, *, ignored: tuple[str, ...] = (), shards: bool = False) -> Path:
    """Sign every file of `directory` but the ignored ones, as `model_signing sign key` does."""
    signature = directory / SIGNATURE_NAME
    signature.unlink(missing_ok=True)
    hashed = hashing.Config()
    if shards:
        hashed.use_shard_serialization(hashing_algorithm="sha256", shard_size=1_000_000)
    hashed.set_ignored_paths(paths=[SIGNATURE_NAME, *ignored])
    config = signing.Config().use_elliptic_key_signer(private_key=private_key).set_hashing_config(hashed)
    config.sign(directory, signature)
    return signature
