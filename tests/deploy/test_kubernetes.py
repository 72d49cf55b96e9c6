"""The manifests in deploy/kubernetes/: valid by Kubernetes' schemas, true to each other and to the
commands and configurations that they name. No cluster is asked."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import typer
import yaml

import howdah
from howdah.cli import app
from howdah.config import loader
from howdah.serving.http import access
from howdah.serving.server import GRACE_SECONDS
from tests import ROOT

PLACE = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.parent for path in PLACE.glob("*/kustomization.yaml"))
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
OLDEST, NEWEST = "1.31", kubernetes_validate.latest_version()
"""podFailurePolicy is stable from 1.31 on."""


def documents(overlay: Path) -> list[dict]:
    """The resources that an overlay names, its patches and those of overlays below not applied."""
    resources = []
    for name in yaml.safe_load((overlay / "kustomization.yaml").read_text())["resources"]:
        path = overlay / name
        if path.is_dir():
            resources += documents(path.resolve())
        else:
            resources += list(yaml.safe_load_all(path.read_text()))
    return resources


@cache
def built(overlay: Path) -> list[dict]:
    """What `kubectl kustomize` makes of an overlay; reads files only."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(overlay)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def one(kind: str, overlay: str) -> dict:
    [resource] = [one for one in documents(PLACE / overlay) if one["kind"] == kind]
    return resource


def pod_of(workload: dict) -> dict:
    return workload["spec"]["template"]["spec"]


def test_every_file_belongs_to_an_overlay():
    named = set()
    for overlay in OVERLAYS:
        kustomization = yaml.safe_load((overlay / "kustomization.yaml").read_text())
        named |= {overlay / "kustomization.yaml"}
        named |= {overlay / name for name in kustomization["resources"]}
        named |= {overlay / patch["path"] for patch in kustomization.get("patches", [])}
        for generated in kustomization.get("configMapGenerator", []):
            named |= {overlay / name for name in generated["files"]}
    assert set(PLACE.glob("*/*.yaml")) <= named
    assert all(path.exists() for path in named)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_manifests_are_valid_by_the_schemas_of_kubernetes(overlay, version):
    for document in documents(overlay):
        kubernetes_validate.validate(document, version, strict=True)  # unknown keys are refused


def test_the_schemas_refuse_what_is_wrong():
    job = one("Job", "training")
    job["spec"]["completion"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, NEWEST, strict=True)


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_what_kustomize_builds_is_valid_and_names_an_image(overlay):
    for document in built(overlay):
        kubernetes_validate.validate(document, NEWEST, strict=True)
        if document["kind"] in ("Job", "Deployment"):
            [container] = pod_of(document)["containers"]
            assert re.fullmatch(r"[\w.-]+/howdah:[\w.-]+", container["image"])
            if overlay.name in ("training-gpu", "training-images"):
                assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
                assert container["args"][0] == "torchrun"  # the patch has left the rest


@needs_kubectl
def test_an_overlay_s_own_configuration_takes_the_place_of_the_one_below():
    for overlay in ("training", "training-images"):
        [config_map] = [one for one in built(PLACE / overlay) if one["kind"] == "ConfigMap"]
        assert config_map["data"] == {"run.yaml": (PLACE / overlay / "run.yaml").read_text()}


def test_the_jobs_pods_find_each_other():
    job, service = one("Job", "training"), one("Service", "training")
    policy = one("NetworkPolicy", "training")
    spec, pod = job["spec"], pod_of(job)
    assert spec["completionMode"] == "Indexed"
    [container] = pod["containers"]
    options = dict(word.removeprefix("--").split("=") for word in container["args"] if "=" in word)
    assert spec["completions"] == spec["parallelism"] == int(options["nnodes"])
    name, where = job["metadata"]["name"], service["metadata"]["name"]
    assert pod["subdomain"] == where and service["spec"]["clusterIP"] == "None"
    assert options["master-addr"] == f"{name}-0.{where}"  # hostname of index 0, in the subdomain
    assert int(options["master-port"]) == service["spec"]["ports"][0]["port"]
    selected = {"job-name": name}  # which the Job's controller sets on its pods
    assert service["spec"]["selector"] == selected
    assert policy["spec"]["podSelector"]["matchLabels"] == selected
    variables = {one["name"] for one in container["env"]}
    used = {name for word in container["args"] for name in re.findall(r"\$\((\w+)\)", word)}
    assert used and used <= variables  # only variables of `env` are put into args
    assert "-m howdah.training --config /etc/howdah/run.yaml" in " ".join(container["args"])


@pytest.mark.parametrize(("overlay", "kind"), [("training", "text"), ("training-images", "image")])
def test_the_configuration_is_one_and_saving_has_time(overlay, kind):
    job = one("Job", overlay)
    kustomization = yaml.safe_load((PLACE / overlay / "kustomization.yaml").read_text())
    [generated] = kustomization["configMapGenerator"]
    volumes = {volume["name"]: volume for volume in pod_of(job)["volumes"]}
    assert volumes["config"]["configMap"]["name"] == generated["name"]
    config = loader.load(str(PLACE / overlay / "run.yaml"))
    assert config.data.kind == kind
    assert config.training.framework == "torch"
    [container] = pod_of(job)["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    grace = config.checkpoint.grace_seconds
    assert grace <= float(environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    assert grace < pod_of(job)["terminationGracePeriodSeconds"]
    mounted = {one["mountPath"] for one in container["volumeMounts"]}
    paths = (config.run.directory, config.data.dataset, config.model.base,
             config.publish.directory)  # fmt: skip
    assert all(any(path.startswith(f"{at}/") for at in mounted) for path in paths)


def test_the_server_is_a_command_that_howdah_takes_and_answers_where_it_is_asked():
    deployment, service = one("Deployment", "server"), one("Service", "server")
    [container] = pod_of(deployment)["containers"]
    program, command, *words = container["args"]
    options = typer.main.get_command(app).commands[command].make_context(command, words).params
    assert (program, options["on"], options["host"]) == ("howdah", None, "0.0.0.0")
    keys = dict(one.split("=") for one in options["set"])
    assert keys["serve.open"] == "true"  # without a token only loopback is allowed
    [port] = container["ports"]
    assert port["containerPort"] == options["port"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    paths = {"startupProbe": "ready", "readinessProbe": "ready", "livenessProbe": "live"}
    for probe, what in paths.items():
        assert container[probe]["httpGet"] == {"path": f"/v2/health/{what}", "port": port["name"]}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert int(keys["serve.threads"]) <= int(container["resources"]["limits"]["cpu"])
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = GRACE_SECONDS
    assert pause + grace < pod_of(deployment)["terminationGracePeriodSeconds"]
    model = loader.load(str(PLACE / "training" / "run.yaml"))
    assert options["model"] == model.model_directory  # what the training's run publishes


@pytest.mark.parametrize(("kind", "overlay"), [("Job", "training"), ("Deployment", "server")])
def test_pods_run_without_rights_and_share_one_claim(kind, overlay):
    pod = pod_of(one(kind, overlay))
    claim = one("PersistentVolumeClaim", "storage")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert {one["name"] for one in container["volumeMounts"]} == set(volumes)
    dockerfile = (PLACE / "Dockerfile").read_text()
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}:" in dockerfile and f"--uid {user}" in dockerfile


@needs_kubectl
def test_the_variant_with_a_secret_is_a_server_with_a_login(tmp_path):
    [deployment] = [one for one in built(PLACE / "server-token") if one["kind"] == "Deployment"]
    [container] = pod_of(deployment)["containers"]
    _, command, *words = container["args"]
    options = typer.main.get_command(app).commands[command].make_context(command, words).params
    assert "serve.open=true" not in options["set"] and options["host"] == "0.0.0.0"
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod_of(deployment)["volumes"]}
    assert f"serve.token_file={mounts['tokens']['mountPath']}/tokens" in options["set"]
    assert mounts["tokens"]["readOnly"]
    # As the kubelet mounts it: the files of a Secret are root's; with fsGroup they get that group,
    # and the group may read them (0440) whatever the mode says (kubernetes issue 57923).
    assert pod_of(deployment)["securityContext"]["fsGroup"]
    mode = volumes["tokens"]["secret"]["defaultMode"] | 0o440
    (tmp_path / "tokens").write_text("0123456789abcdef0123456789abcdef\n")
    (tmp_path / "tokens").chmod(mode)
    assert access.tokens(str(tmp_path / "tokens")) == [b"0123456789abcdef0123456789abcdef"]


def test_an_images_lock_has_what_pip_resolved_with_its_hashes(tmp_path):
    """With a report of pip's form and lines of requirements.lock itself."""
    report = {
        "install": [
            {"metadata": {"name": "PyYAML"}, "download_info": {"url": "u", "archive_info": {}}},
            {"metadata": {"name": "typing_extensions"}, "download_info": {"archive_info": {}}},
            {"metadata": {"name": "howdah"}, "download_info": {"url": "file:///", "dir_info": {}}},
        ]
    }
    (tmp_path / "resolved.json").write_text(json.dumps(report))
    script = [sys.executable, str(PLACE / "image_lock.py"), str(ROOT / "requirements.lock")]
    words = [*script, str(tmp_path / "resolved.json"), "setuptools"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    names = re.findall(r"^([\w.-]+)==", done.stdout, re.MULTILINE)
    assert names == ["pyyaml", "setuptools", "typing-extensions"]
    lock = (ROOT / "requirements.lock").read_text()
    assert all(line in lock for line in done.stdout.splitlines())
    assert done.stdout.count("--hash=sha256:") >= 3
    done = subprocess.run([*words, "not-there"], capture_output=True, text=True)
    assert done.returncode == 1 and "no hash of not-there" in done.stderr


def test_the_dockerfile_installs_by_hashes_alone():
    text = (PLACE / "Dockerfile").read_text()
    for line in re.findall(r"pip install [^&]*", text):
        assert any(word in line for word in ("--require-hashes", "--dry-run", "--no-deps")), line
    assert text.count("pip install") == text.count("--no-deps") + 1


def test_the_dockerfile_takes_what_is_there_and_says_that_it_is_untried():
    text = (PLACE / "Dockerfile").read_text()
    assert "NOT TRIED" in text
    copied = [
        word
        for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)
        for word in line.split()[:-1]
    ]
    assert all((ROOT / word).exists() for word in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {"howdah", *howdah.ROOMS} <= set(copied)
    [extras] = re.findall(r"'\.\[([\w,]+)\]'", text)
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])
    constraint = re.compile(re.search(r"grep -oE '([^']+)'", text)[1], re.MULTILINE)
    lock = (ROOT / "requirements.lock").read_text()
    held = {pin.split("==")[0] for pin in constraint.findall(lock)}
    assert {"torch", "ray", "mlflow", "pydantic"} <= held
