import { fileURLToPath } from "node:url";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

const path = (relative: string) => fileURLToPath(new URL(relative, import.meta.url));

export default defineConfig({
  base: "/console/",
  plugins: [react()],
  build: {
    outDir: path("../src/comity/console/static"),
    emptyOutDir: true,
    sourcemap: false,
    target: "es2022",
    // The strict content policy allows no inline script and no data: module.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/api": "http://127.0.0.1:2664", "/login": "http://127.0.0.1:2664" } },
  test: {
    environment: "jsdom",
    setupFiles: [path("src/test/setup.ts")],
    include: ["src/**/*.test.ts?(x)"],
    // The limit ends a test that hangs. A busy machine needs several seconds for one that does not.
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
});
