import { describe, expect, it } from "vitest";
import { outboundUrl } from "../../edge/outbound-url.ts";

const away = { what: "the address", local: false };
const local = { what: "the address", local: true };

describe("outboundUrl", () => {
  it.each([
    ["https://api.openai.com/v1", "https://api.openai.com/v1"],
    ["https://api.openai.com/v1///", "https://api.openai.com/v1"],
    ["https://api.openai.com", "https://api.openai.com"],
    ["https://93.184.216.34:8443/x", "https://93.184.216.34:8443/x"],
    ["https://[2606:4700::1111]/x", "https://[2606:4700::1111]/x"],
    ["HTTPS://API.Example.COM/V1", "https://api.example.com/V1"],
  ])("takes %s", (text, href) => {
    expect(outboundUrl(text, away)).toBe(href);
  });

  it.each([
    "http://api.example.com",
    "ftp://api.example.com",
    "javascript:alert(1)",
    "https://user:pw@api.example.com",
    "https://api.example.com/#x",
    "https://api.example.com/?x",
    "https://127.0.0.1/",
    "https://127.1/",
    "https://0x7f000001/",
    "https://2130706433/",
    "https://017700000001/",
    "https://localhost/",
    "https://localhost./",
    "https://a.localhost/",
    "https://metadata.google.internal/",
    "https://intranet/",
    "https://printer.local/",
    "https://10.1.2.3/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://192.168.0.1/",
    "https://169.254.169.254/latest/meta-data",
    "https://100.64.0.1/",
    "https://0.0.0.0/",
    "https://224.0.0.1/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:a9fe:a9fe]/",
    "https://[fd00::1]/",
    "https://[fe80::1]/",
    "https://①②⑦.0.0.1/",
    "",
    "//api.example.com",
    "api.example.com",
  ])("refuses %s", (text) => {
    expect(() => outboundUrl(text, away)).toThrow("the address cannot be used");
  });

  it("allows loopback, and only that, over http where the edge is local", () => {
    expect(outboundUrl("http://127.0.0.1:9/v1/", local)).toBe("http://127.0.0.1:9/v1");
    expect(outboundUrl("http://localhost:9", local)).toBe("http://localhost:9");
    expect(outboundUrl("http://[::1]:9/", local)).toBe("http://[::1]:9");
    for (const text of ["http://api.example.com", "http://192.168.0.1", "https://192.168.0.1", "http://0.0.0.0"]) {
      expect(() => outboundUrl(text, local)).toThrow("cannot be used");
    }
  });

  it("allows only what the operator lists, where there is a list", () => {
    const listed = { ...away, bases: ["https://api.openai.com", "http://10.1.2.3:8000/v1"] };
    expect(outboundUrl("https://api.openai.com/v1", listed)).toBe("https://api.openai.com/v1");
    expect(outboundUrl("http://10.1.2.3:8000/v1/", listed)).toBe("http://10.1.2.3:8000/v1");
    for (const text of [
      "https://api.example.com/v1",
      "http://api.openai.com/v1",
      "https://api.openai.com:8443/v1",
      "https://api.openai.com.example.com/v1",
      "http://10.1.2.3:8000/v10",
      "http://10.1.2.3:8000/v1/../admin",
      "http://10.1.2.3/v1",
    ]) {
      expect(() => outboundUrl(text, listed)).toThrow("UPSTREAM_BASES");
    }
  });

  it("allows a query where an address is called as it is", () => {
    expect(outboundUrl("https://a.example.com/run?code=1", { ...away, query: true })).toBe(
      "https://a.example.com/run?code=1",
    );
  });
});
