import { fileURLToPath } from "node:url";
import { renderAsync } from "@resvg/resvg-js";

/** Our own, because a bare container has none, and so that a picture looks the same everywhere. */
const FONTS = ["DejaVuSans.ttf", "DejaVuSans-Bold.ttf"].map((name) =>
  fileURLToPath(new URL(`fonts/${name}`, import.meta.url)),
);

/** The picture of an SVG document as PNG bytes, twice its size (sharp on dense screens). */
export async function pngOf(svg: string): Promise<Uint8Array> {
  const image = await renderAsync(svg, {
    fitTo: { mode: "zoom", value: 2 },
    font: { fontFiles: FONTS, loadSystemFonts: false, defaultFontFamily: "DejaVu Sans" },
  });
  return image.asPng();
}
