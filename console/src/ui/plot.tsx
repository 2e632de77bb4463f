// A live line plot. uPlot draws on a canvas, so a table with the same figures stands beside it for
// screen readers. The library is loaded with the first plot.
import { useEffect, useRef } from "react";
import type uPlot from "uplot";
import { clockTime } from "./text";
import "uplot/dist/uPlot.min.css";

export interface Series {
  name: string;
  colour: "c1" | "c2" | "c3" | "c4";
  dashed?: boolean;
  values: (number | null)[];
}

export function Plot({
  title,
  times,
  series,
  format = (value) => value.toLocaleString("en"),
}: {
  title: string;
  times: number[];
  series: Series[];
  format?: (value: number) => string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const names = series.map((each) => each.name).join();
  const values = useRef<uPlot.AlignedData>([[]]);
  values.current = [times, ...series.map((each) => each.values)] as uPlot.AlignedData;

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    let isGone = false;
    const draw = async () => {
      const { default: UPlot } = await import("uplot");
      if (isGone) return;
      plot.current?.destroy();
      plot.current = new UPlot(options(element, series, format), values.current, element);
    };
    void draw();
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: 150 }));
    sized.observe(element);
    // The colours of the canvas follow the theme.
    const themed = new MutationObserver(() => void draw());
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      isGone = true;
      sized.disconnect();
      themed.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
    // The data comes through the second effect; a new set of lines needs a new plot.
  }, [names]);

  useEffect(() => plot.current?.setData(values.current), [times, series]);

  const last = series.map((each) => `${each.name} ${latest(each.values, format)}`).join(", ");
  return (
    <figure className="card" aria-label={`${title}: ${last}`}>
      <div className="head">
        <h2>{title}</h2>
        <div className="legend">
          {series.map((each) => (
            <span key={each.name}>
              <i className={`${each.colour} ${each.dashed ? "dashed" : ""}`} />
              {each.name} <b className="number">{latest(each.values, format)}</b>
            </span>
          ))}
        </div>
      </div>
      <div ref={box} className="plot" aria-hidden="true" />
    </figure>
  );
}

function latest(values: (number | null)[], format: (value: number) => string): string {
  const found = values.findLast((each) => each !== null);
  return found === undefined || found === null ? "–" : format(found);
}

function options(element: HTMLElement, series: Series[], format: (value: number) => string): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const token = (name: string) => style.getPropertyValue(name).trim();
  const colours = { c1: token("--accent"), c2: token("--bad"), c3: token("--warn"), c4: token("--good") };
  const axis = { stroke: token("--soft"), grid: { stroke: token("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width: element.clientWidth,
    height: 150,
    legend: { show: false },
    cursor: { y: false },
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high || 1) * 1.1] } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((each) => clockTime(each * 1000)), space: 90, size: 28 }, { ...axis, size: 52, values: (_, ticks) => ticks.map((each) => format(each)) }],
    series: [
      {},
      ...series.map((each) => ({
        label: each.name,
        stroke: colours[each.colour],
        width: 2,
        spanGaps: true,
        points: { size: 4 },
        ...(each.dashed ? { dash: [6, 4] } : {}),
      })),
    ],
  };
}
