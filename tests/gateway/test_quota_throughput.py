"""What passes of a limit that several gateways share, in virtual time, while idle accounts are swept."""

import asyncio
from heapq import heapify, heappop, heappush
from random import Random
from functions.gateway.errors import OverQuota
from functions.gateway.quota.accounts import RequestQuota
from tests.gateway.quota_rig import Shared
import sys, time

async def drive(shared, seconds, per_s, dice, costs=(1,1), kv=0.0,gpu=0.0):
    begin=shared.clock(); n=0; passed=[]
    events=[]
    for i in range(len(shared.leases)): heappush(events,(begin+dice.random()*.25,'r',i))
    heappush(events,(begin,'q',0)); heappush(events,(begin+.1,'s',0))
    ends=0
    while events:
        at,kind,what=heappop(events)
        if at>=begin+seconds: break
        shared.clock.now_s=max(shared.clock.now_s,at)
        if kind=='r':
            await shared.leases[what].round(); heappush(events,(at+.25*(.9+.2*dice.random()),'r',what))
        elif kind=='s':
            for q in shared.quotas: q.forget_idle(at)
            heappush(events,(at+.25,'s',0))
        elif kind=='q':
            c=costs[1]() if callable(costs[1]) else costs[1]
            e=await shared.enters(n%len(shared.quotas),c,prompt_tokens=costs[0])
            n+=1; heappush(events,(begin+n/per_s,'q',0))
            if e is not None:
                passed.append((at-begin,c)); ends+=1; heappush(events,(at+.05,'e'+str(ends),(e,c)))
        else:
            what,c=what; what.settle(None,c,kv,gpu,at,worked=True); what.leave(at)
    return passed,n

async def main():
    for limit in (60,300):
        for gw in (1,3,8,40):
            for rate in (1.5,3,10,20):
                c=time.process_time()
                sh=Shared(gw,requests_per_minute=limit); 
                await sh.meet()
                T=120
                p,n=await drive(sh,T,rate,Random(1))
                want=min(rate*T,limit+limit*T/60)
                print(limit,gw,rate,'passed',len(p),'of',n,'want',want,'%.1f%%'%(100*len(p)/want-100),[sum(1 for t,_ in
                p if k<=t<k+20) for k in range(0,T,20)],'cpu %.2f'%(time.process_time()-c))
if __name__=='__main__': asyncio.run(main())
