"""Two small recorded days in ServeGen's format: a person's rate that rises and falls, and a job's bursts."""

from math import pi, sin
from pathlib import Path

QUANTILES = "mean,p01,p05,p10,p25,p50,p75,p90,p95,p99,max"


def write_servegen(directory: Path, pool: str, days: int = 2) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    rates = ["client_id,window_start_s,rate_rps,cv"]
    for window in range(days * 144):
        person = 0.3 + 0.2 * sin(2 * pi * window / 144)
        rates.append(f"0,{window * 600},{person:.4f},1.0")
        rates.append(f"1,{window * 600},0.1,6.0")
    lengths = [f"client_id,window_start_s,field,{QUANTILES}"]
    for client in (0, 1):
        lengths.append(f"{client},0,input_tokens,600,100,200,300,400,600,800,900,950,1000,1100")
        lengths.append(f"{client},0,output_tokens,60,10,20,30,40,60,80,90,95,100,110")
    (directory / f"{pool}_rates.csv").write_text("\n".join(rates) + "\n")
    (directory / f"{pool}_lengths.csv").write_text("\n".join(lengths) + "\n")
