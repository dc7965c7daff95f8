"""Security settings that the tests' Spark clusters share: a required secret, RPC over TLS, encrypted disks."""

HOST = "127.0.0.1"


def sealed(folder, ca):
    """Create a folder with a key and a certificate of this authority; return the settings that use them.

    The certificate's chain is also the trusted one.
    """
    folder.mkdir(mode=0o700, parents=True)
    certificate = ca.issue("spark", hosts=[HOST, "localhost"])
    key, chain = folder / "key.pem", folder / "chain.pem"
    key.touch(mode=0o600)
    key.write_bytes(certificate.key_pem)
    chain.write_bytes(certificate.cert_pem + ca.cert_pem)
    return {
        "spark.authenticate": "true",
        "spark.ssl.rpc.enabled": "true",
        "spark.ssl.rpc.openSslEnabled": "true",
        "spark.ssl.rpc.privateKey": str(key),
        "spark.ssl.rpc.certChain": str(chain),
        "spark.io.encryption.enabled": "true",
        "spark.io.encryption.keySizeBits": "256",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
    }
