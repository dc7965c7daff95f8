"""Selects the environment variables for Spark's processes: driver, JVM and Python workers. A query can read them all.

`SELECT java_method('java.lang.System', 'getenv', …)` is a query like any other. So variables that Spark does not need
are left out: keys to sign with, NATS credentials, tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from capture.archive.encryption import VARIABLE

NAMES = frozenset(
    {
        # the system's
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "LANG", "LANGUAGE", "TZ", "TZDIR",
        "TMPDIR", "TMP", "TEMP",
        "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "VIRTUAL_ENV",
        "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS",
        "APPDATA", "COMSPEC", "LOCALAPPDATA", "PATHEXT", "PROGRAMDATA", "SYSTEMDRIVE", "SYSTEMROOT", "USERNAME",
        "USERPROFILE", "WINDIR",
        # access to a store or a cluster, and trusted certificates
        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KRB5CCNAME",
        "KRB5_CONFIG", "KRB5_KTNAME",
        # credentials of stores that have no prefix of their own
        "IDENTITY_ENDPOINT", "IDENTITY_HEADER", "MSI_ENDPOINT", "MSI_SECRET",
        # Java's
        "JAVA_HOME", "JAVA_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH",
        # keys of encrypted objects
        VARIABLE,
    }
)  # fmt: skip
PREFIXES = (
    "LC_", "PYTHON", "CONDA_", "ARROW_", "PARQUET_",
    "SPARK_", "PYSPARK_", "_SPARK_", "_PYSPARK_", "HADOOP_", "YARN_", "HDFS_", "PY4J_",
    "AWS_", "AZURE_", "GOOGLE_",
)  # fmt: skip
NEVER = frozenset({"CAPTURE_SIGNING_KEYS", "CAPTURE_CATALOG_TOKEN"})
"""Variables that no process of Spark gets, not even in a program's own session."""


OTHERS = NEVER | {"SPARK_CONNECT_AUTHENTICATE_TOKEN"}
"""Variables with a prefix of Spark's that our driver does not need."""


def select_needed(environ: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that Spark's processes need, and those with these names."""
    wanted = NAMES | set(also)
    return {
        name: value
        for name, value in environ.items()
        if name not in NEVER
        and (name not in OTHERS or name in wanted)
        and (name in wanted or name.upper() in NAMES or name.startswith(PREFIXES))
    }


def select_harmless(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that no process of Spark gets: for a session that a program starts itself.

    Its workers may connect to NATS with the program's own credentials.
    """
    return {name: value for name, value in environ.items() if name not in NEVER}
