"""An agent of your own, on any machine: `pip install openai`, then `python agent.py 8080`.

Where others can reach it: `pip install "pyjwt[crypto]"` and set EDGE_URL; then it takes that edge's tokens alone."""

import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from openai import OpenAI

edge = os.environ.get("EDGE_URL")
if edge:
    import jwt

    keys = jwt.PyJWKClient(f"{edge}/.well-known/jwks.json")


class Agent(BaseHTTPRequestHandler):
    def do_POST(self):
        task = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
        key = self.headers["authorization"].removeprefix("Bearer ")
        if edge:
            signer = keys.get_signing_key_from_jwt(key).key
            jwt.decode(key, signer, algorithms=["EdDSA"], audience="fulgur-edge", issuer="fulgur")
        base_url = f"{edge}/v1" if edge else self.headers["x-llm-base-url"]
        llm = OpenAI(base_url=base_url, api_key=key)
        messages = [{"role": "user", "content": str(task)}]
        said = llm.chat.completions.create(model="any", messages=messages).choices[0].message.content
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"result": said}).encode())


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Agent).serve_forever()
