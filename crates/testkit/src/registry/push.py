"""Pushes an image: push.py URL CA LOGIN REPOSITORY TAG DIRECTORY OPTIONS.

DIRECTORY has the directories 0, 1, ... with the contents of layers. OPTIONS (JSON): `config` what the image says of its programs; `pack` how layers are
packed, in turn: gzip, zstd, xz, none; `hostile` adds a layer with a path that leads out; `longer` is added to the lengths of layers in the manifest;
`platforms` makes an index of these, where `own` is the image, and others are only named. Prints what was pushed, as JSON.
"""
import base64, gzip, hashlib, io, json, lzma, os, ssl, subprocess, sys, tarfile, urllib.parse, urllib.request

url, authority, login, repository, tag, source, options = sys.argv[1:8]
options = json.loads(options)
context = ssl.create_default_context(cafile=authority) if authority else None
IMAGE = 'application/vnd.oci.image.manifest.v1+json'
LAYER = 'application/vnd.oci.image.layer.v1.tar'


def ask(method, path, data=None, kind='application/octet-stream'):
    request = urllib.request.Request(urllib.parse.urljoin(url, path), data=data, method=method, headers={'Content-Type': kind})
    if login:
        request.add_header('Authorization', 'Basic ' + base64.b64encode(login.encode()).decode())
    return urllib.request.urlopen(request, context=context)


def digest(data):
    return 'sha256:' + hashlib.sha256(data).hexdigest()


def put_blob(data):
    location = ask('POST', f'/v2/{repository}/blobs/uploads/', b'').headers['Location']
    ask('PUT', location + ('&' if '?' in location else '?') + 'digest=' + digest(data), data)
    return {'digest': digest(data), 'size': len(data)}


def put_manifest(document, name, kind):
    data = json.dumps(dict(document, schemaVersion=2, mediaType=kind)).encode()
    ask('PUT', f'/v2/{repository}/manifests/{name or digest(data)}', data, kind)
    return {'digest': digest(data), 'size': len(data), 'mediaType': kind}


def pack(how, data):
    if how == 'zstd':
        return subprocess.run(['zstd', '-1', '-c'], input=data, stdout=subprocess.PIPE, check=True).stdout
    return {'gzip': lambda: gzip.compress(data, 1), 'xz': lambda: lzma.compress(data, preset=0), 'none': lambda: data}[how]()


machine = {'x86_64': 'amd64', 'aarch64': 'arm64'}[os.uname().machine]
hows = options.get('pack', ['gzip'])
packed, contents, layers = [], [], []
for number in sorted((name for name in os.listdir(source) if name.isdigit()), key=int):
    tar = ['tar', '--format=pax', '--sort=name', '--pax-option=delete=atime,delete=ctime', '--numeric-owner', '-C', f'{source}/{number}', '-c', '.']
    packed.append(subprocess.run(tar, check=True, stdout=subprocess.PIPE).stdout)
if options.get('hostile'):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode='w') as tar:
        tar.addfile(tarfile.TarInfo('../escaped'))
    packed.append(out.getvalue())
for data in packed:
    how = hows[len(layers) % len(hows)]
    contents.append(digest(data))
    layers.append(dict(put_blob(pack(how, data)), mediaType=LAYER + {'gzip': '+gzip', 'zstd': '+zstd', 'xz': '', 'none': ''}[how]))
for layer in layers:
    layer['size'] += options.get('longer', 0)
config = {'architecture': machine, 'os': 'linux', 'config': options.get('config', {}), 'rootfs': {'type': 'layers', 'diff_ids': contents}}
config = dict(put_blob(json.dumps(config).encode()), mediaType='application/vnd.oci.image.config.v1+json')
platforms = options.get('platforms')
image = put_manifest({'config': config, 'layers': layers}, None if platforms else tag, IMAGE)
pushed = {'manifest': image['digest'], 'config': config['digest'], 'layers': layers}
if platforms:
    def listed(name):
        system, architecture = ('linux', machine) if name == 'own' else name.split('/')
        # A registry takes an index of manifests that it has only.
        of = image if name == 'own' else put_manifest({'config': config, 'layers': [], 'annotations': {'of': name}}, None, IMAGE)
        return dict(of, platform={'os': system, 'architecture': architecture})
    index = put_manifest({'manifests': [listed(name) for name in platforms]}, tag, 'application/vnd.oci.image.index.v1+json')
    pushed['index'] = index['digest']
print(json.dumps(pushed))
