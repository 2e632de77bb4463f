import { fireEvent, render, screen } from "@testing-library/react";
import { beforeAll, describe, expect, it, vi } from "vitest";
import { VirtualList, type Column } from "./list";

type Item = { id: string };

const drawn: string[] = [];
const COLUMNS: Column<Item>[] = [
  {
    name: "Id",
    width: "1fr",
    cell: (row) => {
      drawn.push(row.id);
      return row.id;
    },
  },
];
const items = Array.from({ length: 1_000 }, (_, index) => ({ id: `item ${index}` }));
const list = (changes: object = {}) => <VirtualList label="Items" rows={items} columns={COLUMNS} keyOf={(row) => row.id} {...changes} />;
const focusedRow = () => document.activeElement?.getAttribute("data-index");
const press = (key: string) => fireEvent.keyDown(document.activeElement!, { key });

describe("VirtualList", () => {
  beforeAll(() => {
    // A box of ten rows. jsdom has no layout.
    vi.spyOn(HTMLElement.prototype, "clientHeight", "get").mockReturnValue(440);
    vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockReturnValue(800);
    Element.prototype.scrollTo = () => {};
  });

  const begin = (changes: object = {}) => {
    const view = render(list(changes));
    screen.getAllByRole("row")[1]!.focus();
    return view;
  };

  it("gives the focus to the next row before the key event ends", () => {
    begin();
    for (const [key, row] of [["j", "1"], ["ArrowDown", "2"], ["k", "1"], ["End", "999"], ["ArrowUp", "998"], ["Home", "0"]] as const) {
      press(key);
      expect(focusedRow()).toBe(row);
    }
  });

  it("does not draw the cells of rows again for a key", () => {
    begin();
    drawn.length = 0;
    press("j");
    // Two rows changed their place in the order of the tab key, and the list can move by one row.
    expect(drawn.length).toBeLessThanOrEqual(3);
  });

  it("draws no cell again when other rows are added at the end", () => {
    const view = begin();
    drawn.length = 0;
    view.rerender(list({ rows: [...items, { id: "new" }] }));
    expect(drawn).toEqual([]);
  });

  it("does not take the focus back after a key that moved nothing", () => {
    const view = begin();
    press("Home");
    (document.activeElement as HTMLElement).blur();
    view.rerender(list({ total: 1_000 }));
    expect(document.activeElement).toBe(document.body);
  });

  it("opens the row of the last rows it got", () => {
    const opened: string[] = [];
    const view = begin({ onOpen: (row: Item) => opened.push(row.id) });
    view.rerender(list({ rows: items.slice(5), onOpen: (row: Item) => opened.push(`new ${row.id}`) }));
    press("Enter");
    expect(opened).toEqual(["new item 5"]);
  });

  it("says that a narrower filter shows the rest", () => {
    begin({ isCut: true });
    expect(screen.getByText(/1,000 shown. Narrow the filter/)).toBeTruthy();
  });
});
