import { FulgurError } from "#shared/errors.ts";
import { listPrices, readSpent, type PriceRow } from "#shared/store/metering.ts";
import type { StoreDb } from "#shared/store/connect.ts";
import { readTenantSettings } from "#shared/store/tenants.ts";
import { dayOf } from "#shared/store/usage.ts";

/**
 * A tenant's monthly budget, kept before a call and not after it: a call reserves what it may cost at most, and settles
 * what it did cost. What the store says is asked again every few seconds; what this isolate has reserved and settled
 * since is added to it, so that a burst cannot spend the same money twice.
 */
export interface Budget {
  /** Throws FulgurError ERR_BUDGET where the budget does not cover the call; undefined where the tenant has none. */
  reserve(request: BudgetRequest): Promise<Reservation | undefined>;
}

export interface BudgetRequest {
  readonly tenantId: string;
  /** As usage names it: `flight@13`, `openai/gpt-5-mini`. */
  readonly model: string;
  /** Upper bounds of what the call may take. */
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly db: () => StoreDb;
  readonly now: number;
}

export interface Reservation {
  /** To be called once, with what the call took. */
  settle(promptTokens: number, completionTokens: number): void;
}

interface Account {
  readonly monthly: number | undefined;
  readonly spent: number;
  readonly prices: readonly PriceRow[];
  /** Settled since the store was asked; a call that the store counted already may be in it too, for a few seconds. */
  settled: number;
  readonly readAt: number;
}

const FRESH_MS = 3000;

export function budget(): Budget {
  const accounts = new Map<string, Account>();
  /** Reserved by calls that are under way, by tenant: outlives what the store said. */
  const underWay = new Map<string, number>();

  async function accountOf({ tenantId, db, now }: BudgetRequest): Promise<Account> {
    const known = accounts.get(tenantId);
    if (known !== undefined && now - known.readAt < FRESH_MS) return known;
    const settings = await readTenantSettings(db(), tenantId);
    const monthly = settings?.monthly_budget;
    const account: Account =
      monthly === undefined
        ? { monthly, spent: 0, prices: [], settled: 0, readAt: now }
        : {
            monthly,
            spent: await readSpent(db(), tenantId, monthOf(now)),
            prices: await listPrices(db(), tenantId),
            settled: 0,
            readAt: now,
          };
    accounts.set(tenantId, account);
    return account;
  }

  return {
    async reserve(request) {
      const { tenantId, now } = request;
      const account = await accountOf(request);
      if (account.monthly === undefined) return undefined;
      const price = priceOf(account.prices, request.model, now);
      if (price === undefined) return undefined;
      const most = costOf(price, request.promptTokens, request.completionTokens);
      const committed = account.spent + account.settled + (underWay.get(tenantId) ?? 0);
      if (committed + most > account.monthly) {
        throw new FulgurError(
          "ERR_BUDGET",
          `the month's budget of ${account.monthly} does not cover this call: ${committed.toFixed(4)} are spent or reserved and it may take ${most.toFixed(4)}; raise it with fulgur tenant set --monthly-budget`,
        );
      }
      underWay.set(tenantId, (underWay.get(tenantId) ?? 0) + most);
      return {
        settle(promptTokens, completionTokens) {
          underWay.set(tenantId, Math.max(0, (underWay.get(tenantId) ?? 0) - most));
          const current = accounts.get(tenantId);
          if (current !== undefined) current.settled += costOf(price, promptTokens, completionTokens);
        },
      };
    },
  };
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
