"""An agent of your own, on any machine: `pip install openai`, then `python agent.py 8080`."""

import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from openai import OpenAI


class Agent(BaseHTTPRequestHandler):
    def do_POST(self):
        task = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
        key = self.headers["authorization"].removeprefix("Bearer ")
        llm = OpenAI(base_url=self.headers["x-llm-base-url"], api_key=key)
        messages = [{"role": "user", "content": str(task)}]
        said = llm.chat.completions.create(model="any", messages=messages).choices[0].message.content
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"result": said}).encode())


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Agent).serve_forever()
