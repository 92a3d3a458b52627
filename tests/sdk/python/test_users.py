"""Users of a sandbox: root, sudo, and those that root makes."""

import e2b
import pytest
from support import out, unique


def test_sudo(box) -> None:
    """The user of `base` becomes root without a password, by the set-user-id bit of sudo."""
    assert out(box, "sudo id -un") == "root"
    assert out(box, "sudo -u user id -u") == "1000"
    assert out(box, "touch /tmp/of-www; sudo chown 33:33 /tmp/of-www; stat -c '%u %g' /tmp/of-www") == "33 33"


def test_environment_of_root(box) -> None:
    """A command of root begins in root's home, with root's environment."""
    assert out(box, "echo $HOME $USER $LOGNAME; pwd", user="root") == "/root root root\n/root"


def test_a_package_is_installed(box) -> None:
    """dpkg unpacks, sets owners and runs scripts as root."""
    name = unique("pkg")
    box.commands.run(
        f"mkdir -p /tmp/{name}/DEBIAN /tmp/{name}/usr/bin && cd /tmp/{name}"
        f" && printf 'Package: {name}\\nVersion: 1\\nArchitecture: all\\nMaintainer: a <a@example.com>\\nDescription: a\\n' > DEBIAN/control"
        " && printf '#!/bin/sh\\nid -u > /var/lib/installed-by\\n' > DEBIAN/postinst && chmod 755 DEBIAN/postinst"
        f" && printf '#!/bin/sh\\necho it works\\n' > usr/bin/{name} && chmod 755 usr/bin/{name}"
        f" && dpkg-deb --root-owner-group --build . /tmp/{name}.deb"
    )
    box.commands.run(f"sudo dpkg -i /tmp/{name}.deb")
    assert out(box, name) == "it works"
    assert out(box, f"stat -c %U /usr/bin/{name}; cat /var/lib/installed-by") == "root\n0"
    box.commands.run(f"sudo dpkg --purge {name}")


def test_a_user_is_made(box) -> None:
    """Names are those of the sandbox's own /etc/passwd and /etc/group."""
    name = unique("u").replace("-", "")[:12]
    box.commands.run(f"useradd -m -s /bin/bash {name} && usermod -aG games {name}", user="root")
    assert out(box, "id -un; id -Gn; pwd", user=name) == f"{name}\n{name} games\n/home/{name}"
    assert out(box, f"sudo su {name} -c 'id -un'") == name
    box.files.write("mine", "x", user=name)
    assert box.files.get_info(f"/home/{name}/mine").owner == name
    box.commands.run("chmod 700 .", user=name)
    with pytest.raises(e2b.SandboxException):
        box.files.read(f"/home/{name}/mine")
    assert box.files.read("mine", user=name) == "x"
    box.commands.run(f"userdel -r {name}", user="root")
    with pytest.raises(e2b.SandboxException, match=name):
        box.commands.run("true", user=name)


def test_files_of_root(box) -> None:
    """Root reads and writes what others may not, and keeps the owner of a file that it overwrites."""
    box.files.write("/etc/of-root", "root's", user="root")
    assert box.files.get_info("/etc/of-root").owner == "root"
    with pytest.raises(e2b.SandboxException):
        box.files.write("/etc/of-root", "user's")
    assert "root:" in box.files.read("/etc/shadow", user="root")
    box.files.write("of-user", "user's")
    box.files.write("/home/user/of-user", "root's", user="root")
    assert box.files.get_info("of-user").owner == "user" and box.files.read("of-user") == "root's"
    assert box.files.make_dir("/srv/a/b", user="root")
    assert [entry.name for entry in box.files.list("/srv/a", user="root")] == ["b"]
    assert box.files.rename("/srv/a/b", "/srv/c", user="root").path == "/srv/c"
    box.files.remove("/srv/c", user="root")
    assert not box.files.exists("/srv/c", user="root")


def test_root_is_kept_in(box) -> None:
    """Root of the sandbox is no user of the host."""
    for attempt in ("mount -t tmpfs none /mnt", "mknod /tmp/sda b 8 0", "echo x > /proc/sys/kernel/core_pattern", "umount /proc"):
        with pytest.raises(e2b.CommandExitException):
            box.commands.run(attempt, user="root")
    assert out(box, "cat /proc/self/uid_map", user="root").split()[2] == "65536"
