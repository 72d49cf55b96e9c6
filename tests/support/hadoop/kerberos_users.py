"""Users of the Kerberised mini cluster: this process is alice, a command the user it names."""

import subprocess


def become_alice(cluster, directory, monkeypatch):
    """This process is alice by her keytab; she and bob have homes on HDFS."""
    for key, value in cluster.env.items():
        monkeypatch.setenv(key, value)
    for key in ("HADOOP_USER_NAME", "HADOOP_PROXY_USER"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{directory}/own")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(cluster.keytab("alice")))
    # What is shipped goes to the home directory of the user who runs it; a user's first run on a
    # cluster expects that directory.
    for user in ("alice", "bob"):
        cluster.make_home(user)


def ticket(cluster, directory, user, name):
    """Environment of a command with a user's ticket."""
    cache = f"FILE:{directory}/{name}"
    argv = ["kinit", "-c", cache, "-kt", cluster.keytab(user), cluster.principal(user)]
    subprocess.run(argv, check=True, env=cluster.env)
    return {"KRB5CCNAME": cache, "KRB5_CLIENT_KTNAME": "/none"}
