import { FulgurError } from "#shared/errors.ts";

const OTHERS = "the operator lists others in UPSTREAM_BASES";
const LOOPBACK = new Set(["127.0.0.1", "localhost", "[::1]"]);

/** What an edge may call. */
export interface OutboundRules {
  /** Whether this edge runs on one machine, where what it calls may too. */
  readonly local: boolean;
  /** Where the operator keeps an allow-list: the only bases that may be called, private ones among them if it says so. */
  readonly bases?: readonly string[];
}

export interface OutboundOptions extends OutboundRules {
  /** What the address is of, for the message: `the base_url of provider openai`. */
  readonly what: string;
  /** Whether it may have a query: one to which paths are added may not. */
  readonly query?: boolean;
}

/**
 * An address that the edge will send requests to because an admin said so, without a trailing slash.
 *
 * It must begin with one of the allow-list's bases where there is such a list, else be https on a public name; where the
 * edge is local, http and loopback are allowed too. Names that lead to private addresses are found when they are numbers;
 * a public name that resolves to one is the network's to refuse.
 * @throws FulgurError ERR_INVALID_REQUEST saying what is wrong with it; credentials in it are not repeated
 */
export function outboundUrl(text: string, { what, local, bases, query = false }: OutboundOptions): string {
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw refused(what, "it is not a URL; write it as https://host/path");
  }
  if (url.username !== "" || url.password !== "") {
    throw refused(what, "it has credentials in it; send the key by itself");
  }
  if (url.hash !== "" || (url.search !== "" && !query))
    throw refused(what, "it has a query or a fragment; leave them out");
  const loopback = LOOPBACK.has(url.hostname);
  if (loopback && local && (url.protocol === "http:" || url.protocol === "https:")) return whole(url);
  if (bases !== undefined) {
    if (bases.some((base) => isUnder(url, base))) return whole(url);
    throw refused(what, `${url.origin} is not among the addresses that this edge may call (UPSTREAM_BASES)`);
  }
  if (url.protocol !== "https:") {
    throw refused(what, `it must be https${local ? ", or http on this machine" : ""}; ${OTHERS}`);
  }
  if (isPrivate(url.hostname)) throw refused(what, `${url.hostname} is not a public address; ${OTHERS}`);
  return whole(url);
}

/** Whether a base leads to it: the same origin, and a path that goes on from the base's. */
function isUnder(url: URL, base: string): boolean {
  const { origin, pathname } = new URL(base);
  const path = pathname.replace(/\/+$/, "");
  return url.origin === origin && (url.pathname === path || url.pathname.startsWith(`${path}/`));
}

function whole(url: URL): string {
  return url.href.replace(/\/+$/, "");
}

/** The parser has brought numbers of every notation into dotted decimals and IPv6 into its shortest form. */
function isPrivate(host: string): boolean {
  const name = host.replace(/\.$/, "");
  // 2000::/3 is all that is public, less Teredo and 6to4, which carry an IPv4 address, as those forms do that are left out.
  if (name.startsWith("[")) return !/^\[[23][0-9a-f]{3}:/.test(name) || /^\[(2001:0?:|2002:)/.test(name);
  if (/^\d+(\.\d+){3}$/.test(name)) return isPrivateV4(name.split(".").map(Number));
  return !name.includes(".") || /(^|\.)(localhost|local|internal|home\.arpa)$/.test(name);
}

function isPrivateV4([a = 0, b = 0]: readonly number[]): boolean {
  return (
    a === 0 ||
    a === 10 ||
    a === 127 ||
    a >= 224 ||
    (a === 100 && b >= 64 && b < 128) ||
    (a === 169 && b === 254) ||
    (a === 172 && b >= 16 && b < 32) ||
    (a === 192 && (b === 0 || b === 168)) ||
    (a === 198 && (b === 18 || b === 19))
  );
}

function refused(what: string, why: string): FulgurError {
  return new FulgurError("ERR_INVALID_REQUEST", `${what} cannot be used: ${why}`);
}
