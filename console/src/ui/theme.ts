// Light, dark, or as the system says. The choice stays in this browser.
export type Theme = "light" | "dark" | "system";

const KEY = "comity.theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

export const currentTheme = (): Theme => (localStorage.getItem(KEY) as Theme | null) ?? "system";

export function applyTheme(theme: Theme = currentTheme()) {
  localStorage.setItem(KEY, theme);
  const isDark = theme === "dark" || (theme === "system" && system.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}

system.addEventListener("change", () => applyTheme());
