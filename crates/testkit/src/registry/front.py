"""Stands in front of a registry, by TLS, and spoils what it answers: front.py CERTIFICATE KEY REGISTRY CONTROL LOG. Prints its port.

CONTROL is a file with JSON, read for each request. Of blobs, `cut` sends so many bytes only, `redirect` sends to another place (PATH in it is that of
the request), `corrupt` changes a byte, `slow` waits so many seconds before each 64 KiB, `whole` knows no ranges. `fail` answers so many requests with
503. `token` wants a token of its own service, or of the one at `realm`, which wants me:sesame, or the identity token `an identity`. `endless` sends
manifests without an end. LOG gets a line for each request: path, range, whether it has an authorization, status, bytes.
"""
import base64, http.server, json, ssl, sys, threading, time, urllib.error, urllib.parse, urllib.request

certificate, key, registry, control, log = sys.argv[1:6]
LOGIN = 'Basic ' + base64.b64encode(b'me:sesame').decode()
failed = [0]


class Front(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_POST(self):
        asked = urllib.parse.parse_qs(self.rfile.read(int(self.headers['Content-Length'])).decode())
        knows = asked.get('grant_type') == ['refresh_token'] and asked.get('refresh_token') == ['an identity']
        self.reply(200, json.dumps({'access_token': 'a-token'}).encode()) if knows else self.reply(401)

    def do_GET(self):
        self.spoil = json.load(open(control))
        status, sent = self.answer()
        with open(log, 'a') as out:
            secret = 'secret' if self.headers.get('Authorization') else '-'
            print(self.path.split('?')[0], self.headers.get('Range', '-'), secret, status, sent, file=out)

    def reply(self, status, body=b'', **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace('_', '-'), value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return status, len(body)

    def answer(self):
        spoil = self.spoil
        if spoil.get('fail', 0) > failed[0]:
            failed[0] += 1
            return self.reply(503)
        if self.path.startswith('/token'):
            if self.headers.get('Authorization') != LOGIN:
                return self.reply(401)
            return self.reply(200, json.dumps({'token': 'a-token'}).encode())
        if spoil.get('token') and self.headers.get('Authorization') != 'Bearer a-token':
            realm = spoil.get('realm', f'https://{self.headers["Host"]}/token')
            return self.reply(401, WWW_Authenticate=f'Bearer realm="{realm}",service="front",scope="repository:x:pull"')
        is_blob = '/blobs/' in self.path
        if spoil.get('redirect') and is_blob:
            return self.reply(307, Location=spoil['redirect'].replace('PATH', self.path))
        if spoil.get('endless') and not is_blob:
            return self.endless()
        asked = {name.title(): value for name, value in self.headers.items() if name.lower() in ('accept', 'range')}
        if spoil.get('whole'):
            asked.pop('Range', None)
        try:
            found = urllib.request.urlopen(urllib.request.Request(registry + self.path, headers=asked))
        except urllib.error.HTTPError as error:
            found = error
        body = found.read()
        if spoil.get('corrupt') and is_blob and body[:1] != b'{':
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.send_response(found.status)
        for name in ('Content-Type', 'Content-Length', 'Content-Range'):
            if found.headers.get(name):
                self.send_header(name, found.headers[name])
        self.end_headers()
        cut = spoil.get('cut') if is_blob else None
        sent = 0
        while sent < len(body):
            step = body[sent:sent + 65536]
            if cut is not None and sent + len(step) > cut:
                self.wfile.write(step[:cut - sent])
                self.wfile.flush()
                self.connection.shutdown(2)
                self.close_connection = True
                return found.status, cut
            if is_blob and spoil.get('slow'):
                time.sleep(spoil['slow'])
            self.wfile.write(step)
            sent += len(step)
        return found.status, sent

    def endless(self):
        self.send_response(200)
        self.send_header('Transfer-Encoding', 'chunked')
        self.end_headers()
        sent = 0
        try:
            while True:
                self.wfile.write(b'10000\r\n' + b' ' * 65536 + b'\r\n')
                sent += 65536
        except OSError:
            self.close_connection = True
            return 200, sent

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Front)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
