"""Templates: builds, their errors, tags.

Each build starts from the template `base`, so that nothing is pulled from a registry.
"""

import pathlib
import time

import e2b
import pytest

import web
from support import out, unique


@pytest.fixture
def name(api):
    """The name of a template that is deleted at the end."""
    name = unique("suite")
    yield name
    web.api("DELETE", f"/templates/{name}")


def base(api):
    return api.Template().from_template("base")


def build(api, template, name, **options):
    return api.Template.build(template, name, **options)


def test_build(api, make, name) -> None:
    logs: list[str] = []
    template = base(api).run_cmd("echo built > /home/user/mark")
    info = build(api, template, name, on_build_logs=lambda entry: logs.append(entry.message))
    assert info.name == name and info.template_id and info.build_id and logs
    assert out(make(name), "cat mark") == "built"
    assert make(info.template_id).is_running()
    described = web.api("GET", f"/templates/{info.template_id}").json()
    assert [(found["buildID"], found["status"]) for found in described["builds"]] == [(info.build_id, "ready")]
    path = f"/templates/{info.template_id}/builds/{info.build_id}/logs"
    forward, backward = web.api("GET", path).json()["logs"], web.api("GET", f"{path}?direction=backward").json()["logs"]
    assert forward == backward[::-1] and any("echo built" in entry["message"] for entry in forward)


def test_build_in_background(api, name) -> None:
    info = api.Template.build_in_background(base(api).run_cmd("sleep 1"), name)
    deadline = time.monotonic() + 120
    while (status := api.Template.get_build_status(info)).status.value in ("building", "waiting"):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    assert status.status.value == "ready" and status.build_id == info.build_id


def test_exists(api, make, name) -> None:
    """The templates of the server exist for each team. A snapshot is a template, too."""
    assert not api.Template.exists(name) and not api.Template.alias_exists(name)
    make().create_snapshot(name=name)
    for known in (name, "base", "python", "node"):
        assert api.Template.exists(known) and api.Template.alias_exists(known), known


def test_tags(api, make, name) -> None:
    make().create_snapshot(name=f"{name}:first")
    assert api.Template.assign_tags(f"{name}:first", ["second", "third"]).tags
    tags = {tag.tag for tag in api.Template.get_tags(name)}
    assert tags >= {"first", "second", "third"}
    assert make(f"{name}:second").is_running()
    api.Template.remove_tags(name, ["second"])
    assert "second" not in {tag.tag for tag in api.Template.get_tags(name)}


def test_tags_of_a_build(api, name) -> None:
    info = build(api, base(api), name, tags=["first"])
    assert "first" in {tag.tag for tag in api.Template.get_tags(info.template_id)}


def test_steps(api, make, name) -> None:
    """Check 20: user, directory and variables hold for the steps after them."""
    template = (
        base(api)
        .set_envs({"MARK": "variable"})
        .make_dir("/home/user/made", mode=0o750)
        .set_workdir("/home/user/made")
        .run_cmd("echo $MARK > here; id -un >> here")
        .make_symlink("/home/user/made/here", "/home/user/link")
        .run_cmd("cp here there")
        .rename("/home/user/made/there", "/home/user/made/moved")
        .run_cmd("touch gone")
        .remove("/home/user/made/gone")
    )
    build(api, template, name)
    sandbox = make(name)
    assert out(sandbox, "cat ~/link; ls /home/user/made; echo $MARK") == "variable\nuser\nhere\nmoved\nvariable"


def test_copy(api, make, name, tmp_path) -> None:
    """Check 20: directories are merged, links in them stay links."""
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "file").write_text("copied")
    (tree / "link").symlink_to("sub/file")
    (tmp_path / "more" / "sub").mkdir(parents=True)
    (tmp_path / "more" / "sub" / "other").write_text("merged")
    template = api.Template(file_context_path=str(tmp_path)).from_template("base")
    template = template.copy("tree", "/home/user/to").copy_items([{"src": "more", "dest": "/home/user/to"}])
    build(api, template, name)
    sandbox = make(name)
    assert out(sandbox, "cat to/sub/file to/sub/other; readlink to/link") == "copiedmergedsub/file"


def test_users(api, make, name) -> None:
    """Check 20: an unknown user gives an error that names it. Until then `root` answers the documented error."""
    with pytest.raises(e2b.BuildException, match="absent"):
        build(api, base(api).set_user("absent").run_cmd("true"), name)


def test_a_failing_step(api, name) -> None:
    """Check 20: the error names the step and shows its output."""
    with pytest.raises(e2b.BuildException) as raised:
        build(api, base(api).run_cmd("echo the reason >&2; exit 3"), name)
    assert "3" in str(raised.value)
    assert (
        not api.Template.exists(name) or web.api("POST", "/v2/sandboxes", json={"templateID": name}).status_code >= 400
    )


def test_start_command(api, make, name) -> None:
    """The start command runs in each sandbox; the ready command decides when the template is ready."""
    template = base(api).set_start_cmd("python3 -m http.server 8090 --directory /home/user", e2b.wait_for_port(8090))
    build(api, template, name)
    assert web.get_port(make(name), 8090).status_code == 200


def test_ready_command(api, make, name) -> None:
    template = base(api).set_ready_cmd(e2b.wait_for_file("/etc/hostname"))
    build(api, template, name)
    assert make(name).is_running()


def test_a_start_command_that_ends(api, name) -> None:
    """Check 20: a template that was built but cannot start says why."""
    template = base(api).set_start_cmd("echo no such thing; exit 9", e2b.wait_for_port(8091))
    with pytest.raises(e2b.BuildException):
        build(api, template, name)


def test_nothing_of_the_builder_stays(api, make, name) -> None:
    """Check 20: no process and no variable of the build is in the sandbox."""
    build(api, base(api).run_cmd("(setsid sleep 600 &) ; SECRET=1 true"), name)
    sandbox = make(name)
    assert out(sandbox, "pgrep -x sleep || echo none") == "none"
    assert "SECRET" not in out(sandbox, "env")


def test_git_clone(api, make, name) -> None:
    template = base(api).run_cmd(
        "git init -q /home/user/from && cd /home/user/from"
        " && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x"
    )
    build(api, template.git_clone("/home/user/from", "/home/user/to"), name)
    assert out(make(name), "git -C to log --format=%s") == "x"


def test_installs(api, make, name) -> None:
    """Packages of directories in the image: the suite needs no registry."""
    setup = (
        "mkdir -p /home/user/p/pack && echo 'X = 1' > /home/user/p/pack/__init__.py"
        ' && printf \'[project]\\nname="pack"\\nversion="1"\' > /home/user/p/pyproject.toml'
    )
    package = 'mkdir -p /home/user/n && echo \'{"name":"n","version":"1.0.0"}\' > /home/user/n/package.json'
    template = (
        base(api)
        .run_cmd(setup)
        .run_cmd(package)
        .pip_install("--no-build-isolation /home/user/p", g=False)
        .npm_install("/home/user/n")
    )
    build(api, template, name)
    assert out(make(name), "python -c 'import pack; print(pack.X)'") == "1"


@pytest.mark.slow
def test_apt_install(api, make, name) -> None:
    """Needs root in the sandbox, and a Debian mirror."""
    build(api, base(api).apt_install(["sl"]), name)
    assert out(make(name), "dpkg -s sl | grep -c installed") == "1"


def test_cache(api, name) -> None:
    """The second build of the same steps takes them from the cache, unless told not to."""
    template = base(api).run_cmd("sleep 3")
    build(api, template, name)
    started = time.monotonic()
    build(api, template, name)
    assert time.monotonic() - started < 3
    started = time.monotonic()
    build(api, base(api).skip_cache().run_cmd("sleep 3"), name)
    assert time.monotonic() - started >= 3


def test_sizes(api, make, name) -> None:
    build(api, base(api), name, cpu_count=1, memory_mb=512)
    info = make(name).get_info()
    assert (info.cpu_count, info.memory_mb) == (1, 512)


def test_from_an_unknown_template(api, name) -> None:
    with pytest.raises((e2b.BuildException, e2b.SandboxException)):
        build(api, api.Template().from_template(unique("absent")), name)


def test_from_dockerfile(api, make, name) -> None:
    """The SDK turns it into steps."""
    text = "FROM e2bdev/base\nENV MARK=docker\nWORKDIR /home/user\nRUN echo $MARK > mark\n"
    build(api, api.Template().from_dockerfile(text), name)
    assert out(make(name), "cat mark") == "docker"


def test_from_base_image(api, make, name) -> None:
    """The SDK names the image `e2bdev/base`. Here that is the template `base`: nothing is pulled."""
    build(api, api.Template().from_base_image(), name)
    assert out(make(name), "echo alive") == "alive"


@pytest.mark.parametrize(
    "start",
    ["from_python_image", "from_node_image", "from_debian_image", "from_ubuntu_image", "from_fedora_image"]
    + ["from_alpine_image", "from_arch_image", "from_bun_image"],
)
@pytest.mark.slow
def test_from_images(api, make, name, start) -> None:
    """These are pulled from a registry."""
    build(api, getattr(api.Template(), start)(), name)
    assert out(make(name), "echo alive") == "alive"


@pytest.mark.slow
def test_from_registries(api, name) -> None:
    """Wrong credentials give a build error that names the registry."""
    starts = [
        api.Template().from_image("registry.invalid/x:1", username="u", password="p"),
        api.Template().from_aws_registry("registry.invalid/x:1", "id", "secret", "eu-west-1"),
        api.Template().from_gcp_registry("registry.invalid/x:1", {"type": "service_account"}),
    ]
    for template in starts:
        with pytest.raises(e2b.BuildException):
            build(api, template, name)


def test_forms(api) -> None:
    """What the SDK makes of a template without a server."""
    template = base(api).run_cmd("echo 1")
    assert "echo 1" in api.Template.to_json(template)
    assert "echo 1" in api.Template.to_dockerfile(api.Template().from_debian_image().run_cmd("echo 1"))


def test_ready_commands() -> None:
    commands = [
        e2b.wait_for_port(1),
        e2b.wait_for_url("http://127.0.0.1"),
        e2b.wait_for_file("/a"),
        e2b.wait_for_process("a"),
        e2b.wait_for_timeout(1000),
    ]
    assert all(command.get_cmd() for command in commands)


def test_a_secret_in_a_copied_file_is_not_listed(api, name, tmp_path: pathlib.Path) -> None:
    """Check 20: files uploaded for one build are not readable with the key of nobody."""
    assert web.api("GET", f"/templates/{name}/files/{'0' * 64}", key="").status_code == 401
