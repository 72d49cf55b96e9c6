"""An API as a source of rows: pages of JSON become a Parquet file that an ETL can look at."""

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

PAGE, PER_CLASS, HELD_BACK = 100, 200, 150


# ---- the API: it stands for a vendor's
class Api(BaseHTTPRequestHandler):
    """GET /docs?cursor=N answers a page and the next cursor; every fourth request is too many."""

    rows: tuple[dict, ...] = ()
    requests = refused = 0

    def do_GET(self) -> None:
        """Answer one page, or 429 with Retry-After."""
        Api.requests += 1
        if Api.requests % 4 == 0:
            Api.refused += 1
            return self.answer(429, {"error": "too many requests"}, {"Retry-After": "0.2"})
        start = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        end = start + PAGE if start + PAGE < len(Api.rows) else None
        return self.answer(200, {"items": Api.rows[start : start + PAGE], "next": end}, {})

    def answer(self, code: int, body: dict, headers: dict[str, str]) -> None:
        """Send one JSON object."""
        data = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Keep the output for figures."""


# ---- the reader: what one really writes
SCHEMA = pa.schema([pa.field(n, pa.string(), nullable=False) for n in ("id", "text", "label")])


def page(url: str) -> dict:
    """One page. A 429 or 503 says when to ask again; any other failure is one."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                raise
            time.sleep(float(error.headers.get("Retry-After", 1)))


def read(base: str, path: str) -> int:
    """Write all pages to one Parquet file, a row group a page, and return their number."""
    cursor, pages = 0, 0
    with pq.ParquetWriter(path, SCHEMA) as writer:  # memory: one page, however many there are
        while cursor is not None:
            answer = page(f"{base}/docs?cursor={cursor}")
            # The schema is the contract: a field that is missing or of another type fails here.
            writer.write_table(pa.Table.from_pylist(answer["items"], SCHEMA))
            cursor, pages = answer["next"], pages + 1
    return pages


# ---- run it
texts = pd.read_parquet(sys.argv[1])
texts = texts[texts.text.str.len() > 20].drop_duplicates("text")
texts = texts[texts.label.isin(["matplotlib", "networkx", "pandas", "sqlalchemy"])]
texts = texts.groupby("label").sample(PER_CLASS + HELD_BACK, random_state=0)
texts = texts.sample(frac=1, random_state=0).reset_index(drop=True)
late = texts.groupby("label").cumcount() >= PER_CLASS  # rows of the days after, for watch.py
texts[late].to_parquet("later.parquet")
Api.rows = tuple(texts[~late].to_dict("records"))

server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
threading.Thread(target=server.serve_forever, daemon=True).start()
began = time.perf_counter()
pages = read(f"http://127.0.0.1:{server.server_port}", "rows.parquet")
seconds = time.perf_counter() - began
server.shutdown()

rows = pq.ParquetFile("rows.parquet").metadata.num_rows
print(f"rows in the API = {len(Api.rows)}")
print(f"rows in the Parquet file = {rows}")
print(f"pages = {pages}")
print(f"requests refused with 429 and asked again = {Api.refused}")
print(f"rows read a second, waits included = {rows / seconds:.0f}")
print("What `howdah etl --check` says of the file:")
sys.stdout.flush()
subprocess.run(["howdah", "etl", "--check", "--config", sys.argv[2]], check=True)
