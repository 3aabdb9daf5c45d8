export type CounterName = "calls" | "call_errors" | "client_disconnects" | "records_lost";

/** What one isolate has counted since it started, for `/metrics`. */
export interface Counters {
  add(name: CounterName, by: number): void;
  read(): Readonly<Record<CounterName, number>>;
}

export function counters(): Counters {
  const values: Record<CounterName, number> = { calls: 0, call_errors: 0, client_disconnects: 0, records_lost: 0 };
  return {
    add(name, by) {
      values[name] += by;
    },
    read: () => ({ ...values }),
  };
}
