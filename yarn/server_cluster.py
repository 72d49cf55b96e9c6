"""Servers on YARN: what `howdah serve --on yarn` checks, uploads and waits for."""

from __future__ import annotations

import time
from collections.abc import Callable

from howdah.config.model import Config
from howdah.config.options.serve import OF_CONTAINER, require_implemented
from howdah.core.activity import Progress
from howdah.errors import ClusterError, ModelError, UsageError
from howdah.hadoop.resourcemanager import OVER
from howdah.jobs.application import Application
from howdah.jobs.record import Record
from howdah.jobs.secret_file import write_private
from howdah.models.registry import Published
from howdah.models.server_file import TOKENS
from howdah.packaging import cluster_paths
from howdah.storage import private_files
from howdah.yarn import server, shipping, spec
from howdah.yarn.cluster import YarnCluster, shipped, zip_settings

START_SECONDS = 300.0
"""How long the first answer may take after the start: a node may have to fetch the environment."""
_POLL_SECONDS = 0.5


class ServerCluster(YarnCluster):
    """YARN, for the server of a published model.

    Args:
        model_directory: the published model's directory, on the cluster's storage.
        tokens: reads the tokens of its clients; none with serve.open.
    """

    kind = "server"

    def __init__(
        self, config: Config, model_directory: str, tokens: Callable[[], list[bytes]]
    ) -> None:
        super().__init__(config, tokens)
        self._model_directory = model_directory

    @property
    def directory(self) -> str:
        return self._model_directory

    def check(self, progress: Progress) -> None:
        section = self.config.serve
        if not self._tokens() and not section.open:
            raise UsageError(
                "a server on YARN listens on its node's address, and requests would need no token",
                where="serve.token_file",
                expected="a file of tokens, or serve.open: true",
                remedy="python3 -c 'import secrets; print(secrets.token_hex(32))' > token;"
                " chmod 600 token",
            )
        others = set(type(section).model_fields) - set(OF_CONTAINER)
        require_implemented(section, others, "a server on YARN")
        cluster_paths.refuse_local({"--model": self.directory})
        if Published(self.directory).current() is None:
            raise ModelError(
                "this directory has no published model",
                where=self.directory,
                remedy="`howdah publish` publishes a run",
            )

    def request(self, claim: Record, directory: str, progress: Progress) -> spec.ApplicationRequest:
        config, conf = self.config, self.manager.conf
        shipment, packages = shipping.plan(config, progress, kind="serve")
        shipping.upload(config, packages, progress)
        path, tokens = config.serve.token_file, None
        if path is not None:  # the text: it also has the tokens that are for /metrics alone
            where = f"serve.token_file {path}"
            tokens = private_files.read(path, what="the file of tokens", where=where)
        section = config.serve.model_copy(update={"token_file": None})
        without_file = config.model_copy(update={"serve": section})
        return server.application(
            config, shipment, self.directory, token=claim.token,
            config_file=write_private(directory, spec.CONFIG, shipped(without_file)),
            token_file=write_private(directory, TOKENS, tokens) if tokens else None,
            hadoop_file=zip_settings(directory, conf), secure=conf.kerberos,
        )  # fmt: skip

    def announce(self, application: Application, progress: Progress) -> str | None:
        """Wait until the server answers, and return its URL.

        Raises:
            ClusterError: the application has ended, or does not answer in time.
        """
        until, last = time.monotonic() + START_SECONDS, None
        while True:
            report = self.manager.application(application.id)
            if report["state"] != last:
                last, until = report["state"], time.monotonic() + START_SECONDS
                progress(f"{application.id} is {last}")
            if last in OVER:
                raise ClusterError(
                    "the server's application has ended",
                    where=application.id,
                    got=(report.get("diagnostics") or "").strip()[-2000:] or last,
                    remedy=f"howdah logs {application.id}",
                )
            answer = server.look(application.id, self.directory, self._tokens())
            if answer["health"] is not None:
                return answer["url"]
            # Before it runs, it may wait for room in its queue without a limit.
            if last == "RUNNING" and time.monotonic() > until:
                raise ClusterError(
                    f"the server has not answered within {START_SECONDS:.0f} s",
                    where=answer["url"] or answer["file"],
                    remedy=f"howdah logs {application.id}",
                )
            time.sleep(_POLL_SECONDS)
