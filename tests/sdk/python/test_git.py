"""Git: the SDK runs `git` through commands. The remote is a bare repository in the sandbox."""

import e2b
import pytest

from support import out


@pytest.fixture
def repo(box, directory) -> str:
    path = f"{directory}/repo"
    box.git.init(path, initial_branch="main")
    box.git.configure_user("Suite", "suite@example.com", scope="local", path=path)
    box.files.write(f"{path}/a", "1")
    box.git.add(path)
    box.git.commit(path, "first")
    return path


def test_init_and_commit(box, repo) -> None:
    assert out(box, f"git -C {repo} log --format='%s %an'") == "first Suite"


def test_status(box, repo) -> None:
    assert box.git.status(repo).is_clean
    box.files.write(f"{repo}/b", "2")
    status = box.git.status(repo)
    assert status.has_untracked and status.untracked_count == 1


def test_branches(box, repo) -> None:
    box.git.create_branch(repo, "topic")
    box.git.checkout_branch(repo, "main")
    branches = box.git.branches(repo)
    assert set(branches.branches) == {"main", "topic"} and branches.current_branch == "main"
    box.git.delete_branch(repo, "topic", force=True)
    assert box.git.branches(repo).branches == ["main"]


def test_reset_and_restore(box, repo) -> None:
    box.files.write(f"{repo}/a", "changed")
    box.git.restore(repo, ["a"])
    assert box.files.read(f"{repo}/a") == "1"
    box.files.write(f"{repo}/a", "changed")
    box.git.reset(repo, mode="hard")
    assert box.git.status(repo).is_clean


def test_remotes(box, repo, directory) -> None:
    """Clone, push and pull through a bare repository."""
    bare = f"{directory}/bare"
    box.git.init(bare, bare=True, initial_branch="main")
    box.git.remote_add(repo, "origin", bare)
    assert box.git.remote_get(repo, "origin") == bare
    box.git.push(repo, remote="origin", branch="main", set_upstream=True)
    box.git.clone(bare, f"{directory}/clone")
    assert box.files.read(f"{directory}/clone/a") == "1"
    box.files.write(f"{repo}/a", "2")
    box.git.add(repo)
    box.git.commit(repo, "second")
    box.git.push(repo, remote="origin", branch="main")
    box.git.pull(f"{directory}/clone", remote="origin", branch="main")
    assert box.files.read(f"{directory}/clone/a") == "2"


def test_config(box, repo) -> None:
    box.git.set_config("suite.key", "value", scope="local", path=repo)
    assert box.git.get_config("suite.key", scope="local", path=repo) == "value"


def test_authenticate(box) -> None:
    box.git.dangerously_authenticate("suite", "token", host="git.invalid", protocol="https")
    assert "git.invalid" in out(
        box, "cat ~/.git-credentials; rm ~/.git-credentials; git config --global --unset credential.helper || true"
    )


def test_errors(box, directory) -> None:
    with pytest.raises((e2b.CommandExitException, e2b.SandboxException)):
        box.git.status(f"{directory}/absent")
