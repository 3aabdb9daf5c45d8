import { FulgurError } from "#shared/errors.ts";
import { listPrices, readSpent, type PriceRow } from "#shared/store/metering.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { dayOf } from "#shared/store/usage.ts";
import { TtlCache } from "./ttl-cache.ts";

/**
 * A tenant's monthly budget, kept before a call and not after it: a call reserves what it may cost at most, and settles
 * what it did cost. What the store says was spent is asked again beside the calls every few seconds; what this isolate has
 * reserved and settled since is added to it, so that a burst cannot spend the same money twice. Several isolates see each
 * other's spending only through the store, some seconds late.
 */
export interface Budget {
  /**
   * Undefined where nothing is to be kept: the tenant has no budget, or the model no price. Throws FulgurError ERR_BUDGET
   * where the budget does not cover the call; what the store throws where it is away and has not told of the month yet.
   */
  reserve(request: BudgetRequest): Promise<Reservation | undefined>;
}

export interface BudgetRequest {
  readonly tenantId: string;
  /** Of a calendar month, in the price list's currency; undefined where the tenant has none. */
  readonly monthly: number | undefined;
  /** As usage names it, or the policy before its version is known: `flight@13`, `flight`, `openai/gpt-5-mini`. */
  readonly model: string;
  /** Upper bounds of what the call may take. */
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly db: () => StoreDb;
  readonly now: number;
  /** Keeps work alive beside the call. */
  readonly later: (work: Promise<unknown>) => void;
}

export interface Reservation {
  /** To be called once, with what the call took; it frees the rest. */
  settle(promptTokens: number, completionTokens: number): void;
}

/** What the store said of a tenant's month. */
interface Account {
  readonly month: string;
  readonly spent: number;
  readonly prices: readonly PriceRow[];
  /** The ledger's `settled` when the store was asked: later calls may not be in `spent`. */
  readonly settledBefore: number;
  readonly readAt: number;
}

/** What this isolate's calls have done to a tenant's money. */
interface Ledger {
  /** By calls that are under way. */
  reserved: number;
  underWay: number;
  /** By calls that ended, ever. */
  settled: number;
  /** Since when the store is being asked beside a call. */
  askingSince: number;
}

/** Younger, what the store said is simply used; older, it is asked again beside the call. */
const FRESH_MS = 3000;
/** Older, the call waits for it; unless the store is away. */
const USABLE_MS = 15_000;
const KEPT_MS = 600_000;

export function budget(): Budget {
  const accounts = new TtlCache<Account>({ ttlMs: KEPT_MS });
  const ledgers = new Map<string, Ledger>();

  function ledgerOf(tenantId: string): Ledger {
    let ledger = ledgers.get(tenantId);
    if (ledger === undefined) {
      ledgers.set(tenantId, (ledger = { reserved: 0, underWay: 0, settled: 0, askingSince: -Infinity }));
    }
    return ledger;
  }

  async function read({ tenantId, db, now }: BudgetRequest, { settled: settledBefore }: Ledger): Promise<Account> {
    const month = monthOf(now);
    const [spent, prices] = await Promise.all([readSpent(db(), tenantId, month), listPrices(db(), tenantId)]);
    const account = { month, spent, prices, settledBefore, readAt: now };
    accounts.set(tenantId, account, now);
    return account;
  }

  async function accountOf(request: BudgetRequest, ledger: Ledger): Promise<Account> {
    const { tenantId, now, later } = request;
    const known = accounts.get(tenantId, now);
    if (known === undefined || known.month !== monthOf(now)) return read(request, ledger);
    const age = now - known.readAt;
    if (age >= USABLE_MS) return read(request, ledger).catch(() => known);
    if (age >= FRESH_MS && now - ledger.askingSince >= FRESH_MS) {
      ledger.askingSince = now;
      // Where it fails, the account grows old and the calls themselves ask.
      later(read(request, ledger).catch(() => undefined));
    }
    return known;
  }

  return {
    async reserve(request) {
      const { tenantId, monthly, model, now } = request;
      if (monthly === undefined) return undefined;
      const ledger = ledgerOf(tenantId);
      const account = await accountOf(request, ledger);
      const prices = possiblePrices(account.prices, model, now);
      if (prices.length === 0) return undefined;
      const cost = (prompt: number, completion: number): number =>
        Math.max(...prices.map((price) => costOf(price, prompt, completion)));
      // Nothing is awaited from here to the reservation, so no other call can come between.
      const most = cost(request.promptTokens, request.completionTokens);
      const committed = account.spent + (ledger.settled - account.settledBefore) + ledger.reserved;
      if (committed + most > monthly) {
        throw new FulgurError(
          "ERR_BUDGET",
          `the month's budget of ${monthly} does not cover this call: ${committed.toFixed(4)} are spent or reserved and it may take ${most.toFixed(4)}; raise it with fulgur tenant set --monthly-budget`,
        );
      }
      ledger.reserved += most;
      ledger.underWay++;
      return {
        settle(promptTokens, completionTokens) {
          ledger.underWay--;
          // Sums of fractions: with nobody under way it is nothing, and not almost nothing.
          ledger.reserved = ledger.underWay === 0 ? 0 : Math.max(0, ledger.reserved - most);
          ledger.settled += cost(promptTokens, completionTokens);
        },
      };
    },
  };
}

/** The prices that a call may have: a policy's versions may be priced one by one, and which will answer is not known yet. */
function possiblePrices(prices: readonly PriceRow[], model: string, now: number): PriceRow[] {
  const versions = prices.map((row) => row.model).filter((name) => name.startsWith(`${model}@`));
  return [...new Set([model, ...versions])].flatMap((name) => priceOf(prices, name, now) ?? []);
}

/** The first UTC day of a time's month, `2026-11-01`. */
export function monthOf(time: number): string {
  return `${dayOf(time).slice(0, 7)}-01`;
}

/** The price that holds now: of the very model, else of its policy, else of `*`. The list is newest first. */
export function priceOf(prices: readonly PriceRow[], model: string, now: number): PriceRow | undefined {
  const policy = model.split("@")[0];
  for (const name of [model, policy, "*"]) {
    const price = prices.find((row) => row.model === name && row.valid_from <= now);
    if (price !== undefined) return price;
  }
  return undefined;
}

function costOf(price: PriceRow, promptTokens: number, completionTokens: number): number {
  return (promptTokens * price.prompt_per_million + completionTokens * price.completion_per_million) / 1e6;
}
