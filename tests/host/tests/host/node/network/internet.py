"""The other side: HTTP that tells who asks, a stream without end, UDP that is sent back, and DNS over both.

Over TLS, with the certificate and key that it is started with, it also tells what it was asked for."""
import http.server, socket, socketserver, ssl, struct, sys, threading, time

NAMES = {
    'example.test': '1.1.1.1', 'other.test': '1.1.2.2', 'a.example.test': '1.1.2.2', 'b.a.example.test': '1.1.2.2',
    'bad.test': '1.1.2.2', 'inside.test': '10.20.0.8', 'node.test': '8.8.8.1', 'meta.test': '169.254.169.254', 'loop.test': '127.0.0.1',
}


class Http(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        try:
            while self.path == '/stream': self.wfile.write(b'x' * 1000); time.sleep(.01)
        except OSError: return
        self.wfile.write(self.client_address[0].encode())
    def log_message(self, *_): pass


class Told(http.server.BaseHTTPRequestHandler):
    """What it was asked for: its own address, the host, a header, and how many requests came before by this connection."""
    protocol_version = 'HTTP/1.1'
    before = 0
    def do_GET(self):
        if self.headers.get('Upgrade'):
            self.send_response(101); self.send_header('Connection', 'upgrade'); self.send_header('Upgrade', 'shout'); self.end_headers()
            self.wfile.write((self.headers.get('X-Key', '-') + ' ').encode() + self.rfile.readline().upper())
            self.close_connection = True
            return
        text = ' '.join([self.connection.getsockname()[0], self.headers['Host'], self.headers.get('X-Key', '-'), str(self.before)]) + '\n'
        self.before += 1
        is_stream = self.path == '/stream'
        self.send_response(200)
        self.send_header(*(('Connection', 'close') if is_stream else ('Content-Length', str(len(text)))))
        self.end_headers()
        self.wfile.write(text.encode())
        try:
            while is_stream: self.wfile.write(b'x' * 1000); time.sleep(.01)
        except OSError: pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body.upper())
    def log_message(self, *_): pass


class Tls(http.server.ThreadingHTTPServer):
    request_queue_size = 500
    def __init__(self, port):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(*sys.argv[1:3])
        super().__init__(('0.0.0.0', port), Told)
    def finish_request(self, request, address):
        try: super().finish_request(self.context.wrap_socket(request, server_side=True), address)
        except OSError: pass


def answer(query, own):
    name = query[12:query.index(b'\0', 12) + 1]
    kind = query[12 + len(name):16 + len(name)]
    text, at = [], 0
    while name[at]: text.append(name[at + 1:at + 1 + name[at]].decode()); at += 1 + name[at]
    text = '.'.join(text)
    address = own if text == 'server.test' else NAMES.get(text)
    found = address and kind == b'\0\x01\0\x01'
    head = query[:2] + (b'\x81\x80' if address else b'\x81\x83') + b'\0\x01' + struct.pack('>H', bool(found)) + bytes(4)
    return head + name + kind + (b'\xc0\x0c\0\x01\0\x01' + struct.pack('>IH', 60, 4) + socket.inet_aton(address) if found else b'')
def datagrams(address, port, reply):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((address, port))
    while True:
        data, who = s.recvfrom(4096); s.sendto(reply(data, address), who)
class Dns(socketserver.BaseRequestHandler):
    def handle(self):
        size = self.request.recv(2)
        reply = answer(self.request.recv(struct.unpack('>H', size)[0]), '0.0.0.0')
        self.request.sendall(struct.pack('>H', len(reply)) + reply)
def start(work): threading.Thread(target=work, daemon=True).start()
start(http.server.ThreadingHTTPServer(('0.0.0.0', 80), Http).serve_forever)
for port in [443, 8443]: start(Tls(port).serve_forever)
start(http.server.ThreadingHTTPServer(('0.0.0.0', 8080), Told).serve_forever)
start(socketserver.ThreadingTCPServer(('8.8.8.8', 53), Dns).serve_forever)
for address in ['8.8.8.8', '9.9.9.9']: start(lambda address=address: datagrams(address, 53, answer))
start(lambda: datagrams('1.1.2.2', 9000, lambda data, _: data))
print('ready', flush=True); sys.stdin.read()
