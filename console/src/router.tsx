// The addresses of the console. Each screen is a file of its own that loads when it is opened.
import { createRootRoute, createRoute, createRouter, lazyRouteComponent } from "@tanstack/react-router";
import type { Search } from "./navigate";
import { Shell } from "./shell";
import { Empty, Problem } from "./ui/parts";

/** Filters are plain texts in the address, so that every view can be linked to. */
function readSearch(given: Record<string, unknown>): Search {
  const found: Search = {};
  for (const [name, value] of Object.entries(given)) if (value !== undefined && value !== null && value !== "") found[name] = String(value);
  return found;
}

const root = createRootRoute({
  component: Shell,
  validateSearch: readSearch,
  notFoundComponent: () => <Empty>There is no such page.</Empty>,
  errorComponent: ({ error }) => <Problem error={error} />,
});

const route = (path: string, load: () => Promise<Record<string, unknown>>, name: string) =>
  createRoute({ getParentRoute: () => root, path, component: lazyRouteComponent(load as never, name as never) });

const routes = [
  route("/", () => import("./screens/overview"), "Overview"),
  route("/approvals", () => import("./screens/approvals"), "Approvals"),
  route("/approvals/$id", () => import("./screens/approvals"), "Approvals"),
  route("/servers", () => import("./screens/servers"), "Servers"),
  route("/servers/$id", () => import("./screens/server"), "Server"),
  route("/tools", () => import("./screens/tools"), "Tools"),
  route("/tools/$name", () => import("./screens/tool"), "Tool"),
  route("/views", () => import("./screens/views"), "Views"),
  route("/views/$name", () => import("./screens/views"), "ViewScreen"),
  route("/access", () => import("./screens/access"), "Access"),
  route("/accounts", () => import("./screens/accounts"), "Accounts"),
  route("/audit", () => import("./screens/audit"), "Audit"),
  route("/audit/$trace", () => import("./screens/trace"), "Trace"),
  route("/topics", () => import("./screens/topics"), "Topics"),
  route("/topics/$topic", () => import("./screens/topics"), "Topics"),
  route("/live", () => import("./screens/live"), "LiveServers"),
  route("/settings", () => import("./screens/settings"), "Settings"),
  route("/more", () => import("./screens/more"), "More"),
];

export const router = createRouter({
  routeTree: root.addChildren(routes),
  basepath: "/console",
  defaultPreload: "intent",
  scrollRestoration: true,
  // Search values stay readable: `?state=pending`, not JSON.
  parseSearch: (text) => Object.fromEntries(new URLSearchParams(text)),
  stringifySearch: (search) => {
    const given = Object.entries(search).filter(([, value]) => value !== undefined && value !== "");
    const text = new URLSearchParams(given as [string, string][]).toString();
    return text && `?${text}`;
  },
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
