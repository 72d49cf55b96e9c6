"""Jobs on a real YARN by skein: submitted, followed and killed by the command line."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from howdah import storage
from howdah.faults import local_user
from howdah.hadoop.resourcemanager import ResourceManager
from tests.runs.jobs.yarn_jobs import LIMIT, ROOT, Jobs, access_lists, place_data, settings

pytestmark = [pytest.mark.hadoop, pytest.mark.mpi]


def test_a_static_job_from_submission_to_its_end(jobs, home):
    config = jobs.config(settings(home, "static", yarn={"priority": 3, "tags": ["team-a"]}))
    started = jobs.start("submit", "--config", config, "--wait", "--json")
    out, err = started.communicate(timeout=LIMIT)
    assert started.returncode == 0, err
    answer = json.loads(out)
    application = answer["application"]
    assert f"submitted {application}" in err
    assert "step 12" in err.lower()
    assert answer["status"]["final_status"] == "SUCCEEDED"

    status = jobs.status(application)
    assert (status["job"]["state"], status["job"]["step"]) == ("finished", 12)
    assert storage.read_json(f"{home}/runs/static/run.json")["world_size"] == 2
    assert storage.exists(f"{home}/runs/static/export/model.safetensors")
    listed = jobs.json("ps", "--all")["jobs"]
    assert [j["final_status"] for j in listed if j["application"] == application] == ["SUCCEEDED"]
    assert "rank" in jobs.run("logs", application, "--rank", "0").stdout
    assert jobs.json("kill", application)["state"] == "FINISHED"
    jobs.wait_until_gone(application, LIMIT)
    # Hadoop's own client lists it too.
    arguments = ["-list", "-appStates", "FINISHED", "-appTags", "team-a"]
    report = jobs.cluster.run("yarn", "application", *arguments).stdout
    assert application in report
    assert "SUCCEEDED" in report


@pytest.mark.full
@pytest.mark.parametrize("hours", [-26, 26])
def test_the_clocks_of_the_nodes_may_be_wrong_by_a_day(jobs, home, hours):
    library, clock, python = (jobs.directory / name for name in ("clock.so", "clock", "python"))
    source = ROOT / "bench" / "benches" / "chaos" / "clock.c"
    argv = ["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(argv, check=True)
    clock.write_bytes((3600 * hours).to_bytes(8, "little", signed=True))
    python.write_text(
        f'#!/bin/sh\nexport LD_PRELOAD={library} CHAOS_CLOCK={clock}\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    held = settings(home, f"clock{hours}", yarn={"python": str(python)})
    answer = jobs.json("submit", "--config", jobs.config(held), "--wait")
    assert answer["status"]["final_status"] == "SUCCEEDED"


# In every run: attaching (test_submit_preflight.py, tests/jobs/clusters), a kill by Airflow.
@pytest.mark.full
def test_a_second_submission_attaches_or_is_refused_and_a_kill_is_in_time(jobs, home):
    held = settings(home, "twice", training={"max_steps": 100_000})
    config = jobs.config(held)
    first = jobs.json("submit", "--config", config)
    again = jobs.json("submit", "--config", config)
    assert (again["application"], again["attached"]) == (first["application"], True)
    other = jobs.config({**held, "training": {**held["training"], "max_steps": 7}})
    refused = jobs.json("submit", "--config", other, code=5)
    assert first["application"] in refused["got"]
    jobs.wait_for_step(first["application"], 2)

    status = jobs.status(first["application"])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    # The job's own page: where its driver serves it, and behind YARN's proxy, not skein's overview.
    for url in (status["job"]["page"], again["tracking_url"], status["tracking_url"]):
        with opener.open(url, timeout=30) as response:
            shown = response.read().decode()
        assert "<span>rows a second</span>" in shown and first["application"] in shown, url
    texts = jobs.json("logs", first["application"])["logs"]
    assert len(texts) == 3  # the driver's container and two workers'
    began = time.monotonic()
    assert jobs.json("kill", first["application"])["state"] == "KILLED"
    assert time.monotonic() - began < 30  # what is promised, and what YARN is given for it
    jobs.wait_until_gone(first["application"], LIMIT)


@pytest.mark.full
def test_kill_with_save_keeps_what_was_learnt(jobs, home):
    held = settings(
        home, "saved", training={"max_steps": 100_000}, checkpoint={"every_steps": None}
    )
    config = jobs.config(held)
    application = jobs.json("submit", "--config", config)["application"]
    jobs.wait_for_step(application, 3)
    jobs.run("kill", application, "--save")
    saved = storage.find(f"{home}/runs/saved/checkpoints/step-*/manifest.json")
    assert saved
    jobs.wait_until_gone(application, LIMIT)


@pytest.mark.full
def test_ctrl_c_of_a_waiting_submission_ends_the_job(jobs, home):
    config = jobs.config(settings(home, "ctrl-c", training={"max_steps": 100_000}))
    process = jobs.start("submit", "--config", config, "--wait")
    for line in process.stderr:
        if line.startswith("submitted "):
            application = line.split()[1].rstrip(":")
            break
    jobs.wait_for_step(application, 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert jobs.status(application)["state"] in ("KILLED", "FINISHED", "FAILED")
    jobs.wait_until_gone(application, LIMIT)


KILLED_BEFORE_RECORD = """
import os, signal
from howdah.yarn.cluster import YarnCluster
YarnCluster._complete = lambda self, claim, application: os.kill(os.getpid(), signal.SIGKILL)
import sys
from howdah.cli import main
sys.argv = ["howdah", "submit", "--config", sys.argv[1]]
main()
"""


@pytest.mark.full
def test_a_submitter_killed_between_submission_and_record_is_attached_to(jobs, home):
    held = settings(home, "lost", training={"max_steps": 100_000})
    config = jobs.config(held)
    died = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE_RECORD, config], env=jobs.env, cwd=ROOT,
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    again = jobs.json("submit", "--config", config)
    assert again["attached"]
    running = [j for j in jobs.json("ps")["jobs"] if j["name"] == "lost"]
    assert [j["application"] for j in running] == [again["application"]]
    jobs.run("kill", "--config", config)


def test_what_can_never_run_is_refused_before_yarn_is_asked(jobs, home):
    """All problems at once, each with both numbers; no application, no claim on the run."""
    held = settings(
        home, "refused", data={"dataset": f"{home}/no-such-set", "max_length": 64},
        job={"worker": {"memory": "100 GiB"}},
    )  # fmt: skip
    answer = jobs.json("submit", "--config", jobs.config(held), code=5)
    kinds = {problem["error"]: problem for problem in answer["problems"]}
    assert set(kinds) == {"ClusterError", "DataError"}
    assert "6,144 MiB" in kinds["ClusterError"]["expected"]
    assert "102,400 MiB" in kinds["ClusterError"]["got"]
    assert not storage.exists(f"{home}/runs/refused/job/application.json")
    queue = settings(home, "refused", yarn={"queue": "nope"})
    answer = jobs.json("submit", "--config", jobs.config(queue), code=5)
    assert "root.default" in answer["expected"]
    assert not [j for j in jobs.json("ps", "--all")["jobs"] if j["name"] == "refused"]


def test_a_dry_run_shows_all_and_leaves_nothing(jobs, home):
    config = jobs.config(settings(home, "dry", yarn={"view_users": ["bob"]}))
    answer = jobs.json("submit", "--config", config, "--dry-run")
    application = answer["application"]
    assert (application["workers"], application["worker"]["memory_mib"]) == (2, 2048)
    assert application["nodes"] == ["localhost"]  # where the dataset's blocks are
    assert "-P -m howdah.yarn driver" in application["driver"]["script"]
    text = jobs.run("submit", "--config", config, "--dry-run").stdout
    assert "view_users: bob" in text
    assert not storage.exists(f"{home}/runs/dry/job/application.json")


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_an_archive_is_all_that_nodes_need(jobs, home, framework):
    """Its own Python runs driver, agents and ranks: nothing of this machine's environment does."""
    del jobs.env["HOWDAH_CACHE"]  # the user's: an archive is made once
    held = settings(
        home, f"archive-{framework}", training={"framework": framework},
        yarn={"python": None, "staging": f"{home}/staging"},
    )  # fmt: skip
    held["training"]["max_steps"] = 1500  # it must still run when its processes are looked at
    config = jobs.config(held)
    submitted = jobs.run("submit", "--config", config, "--json", limit=900)
    assert f"uploaded howdah-{framework}-" in submitted.stderr
    application = json.loads(submitted.stdout)["application"]
    jobs.wait_for_step(application, 1)
    running = jobs.processes(application)
    pythons = {
        p: w for p, w in running.items() if "-m howdah.yarn " in w or "-m howdah.training" in w
    }
    assert len(pythons) == 5  # the driver, two agents, two ranks
    for pid in pythons:
        program = os.readlink(f"/proc/{pid}/exe")
        assert str(jobs.cluster.directory) in program, (pythons[pid], program)
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert str(ROOT / ".venv") not in maps
    assert jobs.wait_for_end(application, limit=900)["final_status"] == "SUCCEEDED"
    again = jobs.run("submit", "--config", config, "--dry-run", "--json", limit=900)
    assert json.loads(again.stdout)["uploads"] == []


@pytest.mark.full
def test_every_container_has_a_home_of_its_own_and_the_users_files(jobs, home, tmp_path):
    """Proxy variables name no proxy, and TMPDIR is the container's."""
    user_file = tmp_path / "given.txt"
    user_file.write_text("of this machine")
    storage.write_whole(f"{home}/given/remote.txt", b"of the cluster")
    lost = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    held = settings(
        home, "own", training={"max_steps": 100_000},
        yarn={"files": [str(user_file), f"{home}/given/remote.txt"]},
        job={"env": {**lost, "SAID": 'a "b" $HOME `c`'}},
    )  # fmt: skip
    application = jobs.json("submit", "--config", jobs.config(held), **lost)["application"]
    jobs.wait_for_step(application, 2)
    ranks = [
        p for p, command in jobs.processes(application).items() if "-m howdah.training" in command
    ]
    assert len(ranks) == 2
    for pid in ranks:
        raw = Path(f"/proc/{pid}/environ").read_text().split("\0")
        env = dict(line.partition("=")[::2] for line in raw if line)
        directory = Path(os.readlink(f"/proc/{pid}/cwd"))
        assert (env["HOME"], env["TMPDIR"]) == (f"{directory}/home", f"{directory}/tmp")
        assert env["SAID"] == 'a "b" $HOME `c`'
        assert env["HOWDAH_CACHE"].startswith(str(directory.parent))
        assert (directory / "given.txt").read_text() == "of this machine"
        assert (directory / "remote.txt").read_text() == "of the cluster"
    jobs.run("kill", application, **lost)
    jobs.wait_until_gone(application, LIMIT)


@pytest.fixture
def special_cluster(tmp_path, tiny_model_dir, monkeypatch):
    """A cluster of its own: nodes with GPUs (counted), priorities up to 10, the queue of bob and
    carol, where rules put carol, a node label, aggregated logs under another suffix."""
    from tools.minicluster import MiniCluster

    started = MiniCluster(tmp_path / "cluster")
    extra = access_lists(local_user())
    extra["yarn-site"]["yarn.cluster.max-application-priority"] = "10"
    extra["capacity-scheduler"] |= {
        "yarn.scheduler.capacity.root.acl_submit_applications": " ",
        "yarn.scheduler.capacity.root.batch.acl_submit_applications": "bob,carol",
        "yarn.scheduler.capacity.queue-mappings": "u:carol:batch",
        "yarn.scheduler.capacity.queue-mappings-override.enable": "true",
        "yarn.scheduler.capacity.root.default.acl_submit_applications": "*",
        "yarn.scheduler.capacity.root.accessible-node-labels.fast.capacity": "100",
        "yarn.scheduler.capacity.root.default.accessible-node-labels": "fast",
        "yarn.scheduler.capacity.root.default.accessible-node-labels.fast.capacity": "100",
    }
    extra["yarn-site"] |= {
        "yarn.node-labels.enabled": "true",
        "yarn.node-labels.fs-store.root-dir": f"file://{tmp_path}/labels",
        "yarn.nodemanager.remote-app-log-dir-suffix": "of-the-site",
    }
    started.start(node_gpus=2, extra=extra)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(started.conf_dir))
    try:
        place_data(f"{started.hdfs_url}/data", tiny_model_dir)
        for name in ("alice", "carol", "eve"):  # for what is staged
            started.make_home(name)
        started.make_dir("/data")
        started.make_dir("/data/runs")
        yield started
    finally:
        started.stop(remove=True)


@pytest.mark.full
def test_gpus_priority_and_access_lists_are_what_was_asked(special_cluster, tmp_path):
    jobs, home = Jobs(special_cluster, tmp_path), f"{special_cluster.hdfs_url}/data"
    worker = {"memory": "2 GiB", "gpus": 1}
    # The cluster counts GPUs that do not exist: agents that only wait keep their containers.
    waits = tmp_path / "waits"
    waits.write_text(
        f'#!/bin/sh\ntest "$3" = agent && exec sleep 600\nexec {sys.executable} "$@"\n'
    )
    waits.chmod(0o755)
    held = settings(
        home, "special", training={"max_steps": 100_000},
        yarn={"priority": 7, "view_users": ["bob"], "python": str(waits)}, job={"worker": worker},
    )  # fmt: skip
    config = jobs.config(held)
    alice, bob, eve = ({"HADOOP_USER_NAME": name} for name in ("alice", "bob", "eve"))
    application = jobs.json("submit", "--config", config, **alice)["application"]
    manager = ResourceManager()
    deadline = time.monotonic() + LIMIT
    while sum(_gpus_used(node) for node in manager.nodes()) != 2:
        assert time.monotonic() < deadline, manager.nodes()
        time.sleep(0.5)
    assert manager.application(application)["priority"] == 7
    assert jobs.json("status", application, **bob)["user"] == "alice"  # bob may view
    refused = jobs.json("kill", application, code=5, **bob)  # but not kill
    assert refused["error"] == "PermissionDenied"
    batch = settings(home, "refused", yarn={"queue": "batch"})
    refused = jobs.json("submit", "--config", jobs.config(batch), code=5, **eve)
    assert "eve may not submit to queue batch" in refused["what"]
    assert jobs.json("kill", application, **alice)["state"] == "KILLED"
    three = settings(home, "three", job={"workers": 5, "worker": worker})
    refused = jobs.json("submit", "--config", jobs.config(three), code=5)
    assert (refused["got"], refused["expected"][:9]) == ("5", "at most 4")
    blind = settings(home, "blind", job={"worker": worker})
    application = jobs.json("submit", "--config", jobs.config(blind), **alice)["application"]
    status = jobs.wait_for_end(application)
    assert status["final_status"] == "FAILED", status
    assert "requested GPUs and cannot use enough" in json.dumps(status)


@pytest.mark.full
def test_it_says_where_placement_rules_have_put_a_job(special_cluster, tmp_path):
    jobs = Jobs(special_cluster, tmp_path)
    config = jobs.config(settings(f"{special_cluster.hdfs_url}/data", "placed"))
    carol = {"HADOOP_USER_NAME": "carol"}
    done = jobs.run("submit", "--config", config, "--json", **carol)
    assert "have put it into queue root.batch, not default" in done.stderr
    jobs.run("kill", json.loads(done.stdout)["application"], **carol)


def _gpus_used(node):
    used = node["usedResource"]["resourceInformations"]["resourceInformation"]
    return sum(r["value"] for r in used if r["name"] == "yarn.io/gpu")


@pytest.mark.full
def test_a_label_decides_the_node_and_logs_are_found_under_another_suffix(
    special_cluster, tmp_path
):
    cluster, home = special_cluster, f"{special_cluster.hdfs_url}/data"
    node = cluster.plan.address("nodemanager-1")
    for words in (("-addToClusterNodeLabels", "fast"), ("-replaceLabelsOnNode", f"{node}=fast")):
        cluster.run_as_superuser("yarn", "rmadmin", *words)
    jobs = Jobs(cluster, tmp_path)
    held = settings(home, "labelled", yarn={"node_label": "fast"})
    answer = jobs.json("submit", "--config", jobs.config(held), "--wait")
    assert answer["status"]["final_status"] == "SUCCEEDED", answer
    report = ResourceManager().application(answer["application"])
    assert report["amHostHttpAddress"] == cluster.plan.address("nodemanager-1-http")
    assert "step" in jobs.run("logs", answer["application"]).stdout
    directories = storage.list_dir(f"{cluster.hdfs_url}/app-logs/{local_user()}")
    assert [entry.name for entry in directories if "of-the-site" in entry.name]
    other = settings(home, "unknown", yarn={"node_label": "slow"})
    refused = jobs.json("submit", "--config", jobs.config(other), code=5)
    assert "label does not exist" in refused["what"] and "fast" in str(refused)
