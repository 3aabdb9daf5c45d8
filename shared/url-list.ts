import { z } from "zod";

/** One base URL, or several with commas between: in their order, each once, without trailing slashes. */
export const urlListSchema = z
  .string()
  .transform((text) =>
    text
      .split(",")
      .map((url) => url.trim().replace(/\/+$/, ""))
      .filter((url) => url !== ""),
  )
  .pipe(
    z
      .array(z.url())
      .min(1)
      .refine((urls) => new Set(urls).size === urls.length),
  );

/** The same, left as it was written. */
export const urlListTextSchema = z
  .string()
  .refine(
    (text) => urlListSchema.safeParse(text).success,
    "wanted a URL, or several different ones with commas between",
  );
