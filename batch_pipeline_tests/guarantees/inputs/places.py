"""Locations as somebody might write them into a table or a message to reach another file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SECRET = "id\nsecret\n"  # noqa: S105 - the content of a file that nothing may read


@dataclass(frozen=True)
class Ground:
    """A folder of exports that may be read, and what lies beside it, which may not."""

    folder: Path

    @property
    def exports(self) -> Path:
        """What a stream may read."""
        return self.folder / "exports"

    def build(self) -> None:
        """Make the folders, the files and the links."""
        for name in ("exports/deep", "exports-internal", "secret"):
            (self.folder / name).mkdir(parents=True)
        for name in ("exports/a.csv", "exports/deep/b c.csv"):
            (self.folder / name).write_text("id\n1\n")
        for name in ("exports-internal/a.csv", "secret/a.csv", "a.csv"):
            (self.folder / name).write_text(SECRET)
        links = {
            "link.csv": "../secret/a.csv",
            "absolute.csv": str(self.folder / "secret/a.csv"),
            "twice.csv": "link.csv",
            "passwd.csv": "/etc/passwd",
            "folder": "../secret",
            "up": "..",
            "root": "/",
        }
        for name, target in links.items():
            (self.exports / name).symlink_to(target)
        (self.exports / "inside.csv").symlink_to("deep/b c.csv")

    def honest(self) -> Iterator[str]:
        """Give locations of files that may be read."""
        yield f"{self.exports}/a.csv"
        yield f"file://{self.exports}/a.csv"
        yield f"{self.exports}/deep/b c.csv"
        yield f"file://{self.exports}/deep/b%20c.csv"
        yield f"{self.exports}/inside.csv"
        yield f"file://{self.exports}/a.csv#bytes=0-4"

    def hostile(self, host: str) -> Iterator[str]:
        """Give locations that lead out of the exports, or to a host."""
        for prefix in (str(self.exports), f"file://{self.exports}"):
            yield from (f"{prefix}/{tail}" for tail in _TAILS)
        for other in ("exports-internal/a.csv", "secret/a.csv", "a.csv"):
            yield from (f"{self.folder}/{other}", f"file://{self.folder}/{other}")
        yield from (form.format(host=host, secret=self.folder / "secret/a.csv") for form in _FORMS)


_TAILS = (
    "link.csv",
    "absolute.csv",
    "twice.csv",
    "passwd.csv",
    "folder/a.csv",
    "up/a.csv",
    "up/secret/a.csv",
    "root/etc/passwd",
    "root/dev/zero",
    "root/dev/stdin",
    "root/proc/self/environ",
    "../a.csv",
    "../secret/a.csv",
    "deep/../../a.csv",
    "./../a.csv",
    "deep/../../../../../../../../etc/passwd",
    "..",
    "../",
    ".",
    "",
    "deep",
    "//a.csv",
    "deep//b c.csv",
    "..\\a.csv",
    "deep\\..\\..\\a.csv",
    "%2e%2e/a.csv",
    "%2E%2E%2Fa.csv",
    "..%2fa.csv",
    "deep/%2e%2e/%2e%2e/a.csv",
    "%252e%252e/a.csv",
    "..%5ca.csv",
    "%c0%ae%c0%ae/a.csv",
    "\uff0e\uff0e/a.csv",
    "a.csv\0.csv",
    "a.csv%00.csv",
    "a.csv/",
    "a.csv/../../a.csv",
    "a.csv?x=1",
    "a.csv?",
    "a.csv#x",
    "a.csv#bytes=0",
    "a.csv#bytes=9-1",
    "a.csv#bytes=-1-5",
    "../a.csv#bytes=0-3",
    "a.csv\n",
    " a.csv",
    "a.csv ",
    "A.CSV",
    "$HOME/a.csv",
    "~/a.csv",
    "*.csv",
    "[a].csv",
)
_FORMS = (
    "",
    " ",
    "a.csv",
    "./a.csv",
    "../a.csv",
    "~/a.csv",
    "~root/.ssh/id_rsa",
    "/etc/passwd",
    "/etc/shadow",
    "/dev/zero",
    "/dev/stdin",
    "/dev/tcp/{host}",
    "/proc/self/environ",
    "/proc/self/fd/0",
    "/proc/1/root/etc/passwd",
    "//{host}/share/a.csv",
    "\\\\{host}\\share\\a.csv",
    "file:{secret}",
    "file:/{secret}",
    "file:////{secret}",
    "FILE://{secret}",
    "file://localhost{secret}",
    "file://{host}/a.csv",
    "file://{host}@/a.csv",
    "file:///etc/passwd",
    "file://%2fetc%2fpasswd",
    "http://{host}/a.csv",
    "https://{host}/a.csv",
    "HTTP://{host}/a.csv",
    "http:{host}/a.csv",
    "http:///{host}/a.csv",
    "http://169.254.169.254/latest/meta-data/",
    "ftp://{host}/a.csv",
    "ftps://{host}/a.csv",
    "sftp://{host}/a.csv",
    "ssh://{host}/a.csv",
    "smb://{host}/share/a.csv",
    "hdfs://{host}/a.csv",
    "webhdfs://{host}/a.csv",
    "viewfs:///a.csv",
    "jar:file://{secret}!/a",
    "jar:http://{host}/a.jar!/a.csv",
    "zip://a.csv::http://{host}/a.zip",
    "simplecache::http://{host}/a.csv",
    "filecache::file://{secret}",
    "local://{secret}",
    "memory://a.csv",
    "data:text/csv,id%0A1",
    "data://text/plain,id",
    "gopher://{host}/1",
    "ldap://{host}/a",
    "dict://{host}/a",
    "github://{host}/a",
    "git+ssh://{host}/a.csv",
    "s3://bucket-of-others/a.csv",
    "s3://bucket/other/a.csv",
    "s3://bucket/exports-internal/a.csv",
    "s3://bucket/exports",
    "s3://bucket/exports/../other/a.csv",
    "s3://bucket/exports/./a.csv",
    "s3://bucket/exports/..",
    "s3://bucket/exports/x/../../other/a.csv#bytes=0-3",
    "s3://bucket/exports/..#bytes=0-3",
    "s3://bucket/%65xports/a.csv",
    "s3://BUCKET/exports/a.csv",
    "s3://key:hunter2@bucket/exports/a.csv",
    "s3://{host}/exports/a.csv",
    "s3://bucket@{host}/exports/a.csv",
    "s3://bucket:443/exports/a.csv",
    "s3:///exports/a.csv",
    "s3:bucket/exports/a.csv",
    "s3a://bucket-of-others/a.csv",
    "s3n://bucket/other/a.csv",
    "s3://arn:aws:s3:us-east-1:1:accesspoint/x/a.csv",
    "gs://bucket/exports/a.csv",
    "gs://{host}/a.csv",
    "abfs://exports@account.dfs.core.windows.net/a.csv",
    "abfs://exports@{host}/a.csv",
    "abfss://exports@account.dfs.core.windows.net@{host}/a.csv",
    "wasb://exports@{host}/a.csv",
    "r2://bucket/a.csv",
    "oss://bucket/a.csv",
    "{{{{ env.HOME }}}}/a.csv",
)
