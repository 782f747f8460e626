"""NeRF on a synthetic scene of coloured balls, after nerf-pytorch (coarse and fine network, no ray batching)."""
import argparse
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import trange

SMALL = os.environ.get("SMALL") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
np.random.seed(0)

# Misc
img2mse = lambda x, y: torch.mean((x - y) ** 2)
mse2psnr = lambda x: -10.0 * torch.log(x) / torch.log(torch.Tensor([10.0]).to(device))


# ------------------------------------------------------------------ scene
def trans_t(t):
    m = np.eye(4)
    m[2, 3] = t
    return m


def rot_phi(phi):
    c, s = np.cos(phi), np.sin(phi)
    return np.array([[1, 0, 0, 0], [0, c, -s, 0], [0, s, c, 0], [0, 0, 0, 1.0]])


def rot_theta(th):
    c, s = np.cos(th), np.sin(th)
    return np.array([[c, 0, -s, 0], [0, 1, 0, 0], [s, 0, c, 0], [0, 0, 0, 1.0]])


def pose_spherical(theta, phi, radius):
    c2w = rot_theta(theta / 180.0 * np.pi) @ rot_phi(phi / 180.0 * np.pi) @ trans_t(radius)
    return np.array([[-1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1.0]]) @ c2w


def get_rays_np(H, W, K, c2w):
    i, j = np.meshgrid(np.arange(W, dtype=np.float32), np.arange(H, dtype=np.float32), indexing="xy")
    dirs = np.stack([(i - K[0][2]) / K[0][0], -(j - K[1][2]) / K[1][1], -np.ones_like(i)], -1)
    rays_d = np.sum(dirs[..., np.newaxis, :] * c2w[:3, :3], -1)
    rays_o = np.broadcast_to(c2w[:3, -1], np.shape(rays_d))
    return rays_o, rays_d


def load_balls(H, W, K, n_views):
    """Ray trace balls with diffuse light on a white background."""
    rng = np.random.default_rng(1)
    centers, radii, colors = rng.uniform(-1, 1, (6, 3)), rng.uniform(0.3, 0.7, 6), rng.uniform(0.1, 1, (6, 3))
    light = np.array([0.5, 0.3, 0.8])
    images, poses = [], []
    for theta in np.linspace(-180, 180, n_views + 1)[:-1]:
        pose = pose_spherical(theta, rng.uniform(-60, -10), 4.0)
        o, d = get_rays_np(H, W, K, pose)
        d = d / np.linalg.norm(d, axis=-1, keepdims=True)
        depth, image = np.full((H, W), np.inf), np.ones((H, W, 3))
        for center, radius, color in zip(centers, radii, colors):
            oc = o - center
            b = (oc * d).sum(-1)
            disc = b**2 - (oc**2).sum(-1) + radius**2
            t = -b - np.sqrt(np.maximum(disc, 0))
            hit = (disc > 0) & (t > 0) & (t < depth)
            normal = (oc + t[..., None] * d) / radius
            shade = 0.3 + 0.7 * np.clip((normal * light).sum(-1), 0, 1)
            depth = np.where(hit, t, depth)
            image = np.where(hit[..., None], shade[..., None] * color, image)
        images.append(image)
        poses.append(pose)
    return np.array(images, dtype=np.float32), np.array(poses, dtype=np.float32)


# ------------------------------------------------------------------ networks
class Embedder:
    def __init__(self, multires, input_dims=3):
        freq_bands = 2.0 ** torch.linspace(0.0, multires - 1, steps=multires)
        embed_fns = [lambda x: x]
        for freq in freq_bands:
            for p_fn in (torch.sin, torch.cos):
                embed_fns.append(lambda x, p_fn=p_fn, freq=freq: p_fn(x * freq))
        self.embed_fns = embed_fns
        self.out_dim = input_dims * len(embed_fns)

    def embed(self, inputs):
        return torch.cat([fn(inputs) for fn in self.embed_fns], -1)


class NeRF(nn.Module):
    def __init__(self, D=8, W=256, input_ch=3, input_ch_views=3, skips=(4,)):
        super().__init__()
        self.input_ch, self.input_ch_views, self.skips = input_ch, input_ch_views, skips
        self.pts_linears = nn.ModuleList(
            [nn.Linear(input_ch, W)]
            + [nn.Linear(W, W) if i not in self.skips else nn.Linear(W + input_ch, W) for i in range(D - 1)]
        )
        self.views_linears = nn.ModuleList([nn.Linear(input_ch_views + W, W // 2)])
        self.feature_linear = nn.Linear(W, W)
        self.alpha_linear = nn.Linear(W, 1)
        self.rgb_linear = nn.Linear(W // 2, 3)

    def forward(self, x):
        input_pts, input_views = torch.split(x, [self.input_ch, self.input_ch_views], dim=-1)
        h = input_pts
        for i, _ in enumerate(self.pts_linears):
            h = self.pts_linears[i](h)
            h = F.relu(h)
            if i in self.skips:
                h = torch.cat([input_pts, h], -1)
        alpha = self.alpha_linear(h)
        feature = self.feature_linear(h)
        h = torch.cat([feature, input_views], -1)
        for i, _ in enumerate(self.views_linears):
            h = self.views_linears[i](h)
            h = F.relu(h)
        rgb = self.rgb_linear(h)
        return torch.cat([rgb, alpha], -1)


def batchify(fn, chunk):
    """Constructs a version of 'fn' that applies to smaller batches."""

    def ret(inputs):
        return torch.cat([fn(inputs[i : i + chunk]) for i in range(0, inputs.shape[0], chunk)], 0)

    return ret


def run_network(inputs, viewdirs, fn, embed_fn, embeddirs_fn, netchunk=1024 * 64):
    """Prepares inputs and applies network 'fn'."""
    inputs_flat = torch.reshape(inputs, [-1, inputs.shape[-1]])
    embedded = embed_fn(inputs_flat)
    input_dirs = viewdirs[:, None].expand(inputs.shape)
    input_dirs_flat = torch.reshape(input_dirs, [-1, input_dirs.shape[-1]])
    embedded_dirs = embeddirs_fn(input_dirs_flat)
    embedded = torch.cat([embedded, embedded_dirs], -1)
    outputs_flat = batchify(fn, netchunk)(embedded)
    return torch.reshape(outputs_flat, list(inputs.shape[:-1]) + [outputs_flat.shape[-1]])


# ------------------------------------------------------------------ rendering
def get_rays(H, W, K, c2w):
    i, j = torch.meshgrid(torch.linspace(0, W - 1, W), torch.linspace(0, H - 1, H), indexing="ij")
    i = i.t().to(device)
    j = j.t().to(device)
    dirs = torch.stack([(i - K[0][2]) / K[0][0], -(j - K[1][2]) / K[1][1], -torch.ones_like(i)], -1)
    rays_d = torch.sum(dirs[..., np.newaxis, :] * c2w[:3, :3], -1)
    rays_o = c2w[:3, -1].expand(rays_d.shape)
    return rays_o, rays_d


def sample_pdf(bins, weights, N_samples):
    # Get pdf
    weights = weights + 1e-5  # prevent nans
    pdf = weights / torch.sum(weights, -1, keepdim=True)
    cdf = torch.cumsum(pdf, -1)
    cdf = torch.cat([torch.zeros_like(cdf[..., :1]), cdf], -1)

    # Take uniform samples
    u = torch.rand(list(cdf.shape[:-1]) + [N_samples]).to(device)

    # Invert CDF
    u = u.contiguous()
    inds = torch.searchsorted(cdf, u, right=True)
    below = torch.max(torch.zeros_like(inds - 1), inds - 1)
    above = torch.min((cdf.shape[-1] - 1) * torch.ones_like(inds), inds)
    inds_g = torch.stack([below, above], -1)

    matched_shape = [inds_g.shape[0], inds_g.shape[1], cdf.shape[-1]]
    cdf_g = torch.gather(cdf.unsqueeze(1).expand(matched_shape), 2, inds_g)
    bins_g = torch.gather(bins.unsqueeze(1).expand(matched_shape), 2, inds_g)

    denom = cdf_g[..., 1] - cdf_g[..., 0]
    denom = torch.where(denom < 1e-5, torch.ones_like(denom), denom)
    t = (u - cdf_g[..., 0]) / denom
    return bins_g[..., 0] + t * (bins_g[..., 1] - bins_g[..., 0])


def raw2outputs(raw, z_vals, rays_d, raw_noise_std=0.0, white_bkgd=True):
    raw2alpha = lambda raw, dists, act_fn=F.relu: 1.0 - torch.exp(-act_fn(raw) * dists)

    dists = z_vals[..., 1:] - z_vals[..., :-1]
    dists = torch.cat([dists, torch.Tensor([1e10]).to(device).expand(dists[..., :1].shape)], -1)
    dists = dists * torch.norm(rays_d[..., None, :], dim=-1)

    rgb = torch.sigmoid(raw[..., :3])
    noise = 0.0
    if raw_noise_std > 0.0:
        noise = torch.randn(raw[..., 3].shape).to(device) * raw_noise_std
    alpha = raw2alpha(raw[..., 3] + noise, dists)
    weights = alpha * torch.cumprod(
        torch.cat([torch.ones((alpha.shape[0], 1)).to(device), 1.0 - alpha + 1e-10], -1), -1
    )[:, :-1]
    rgb_map = torch.sum(weights[..., None] * rgb, -2)

    depth_map = torch.sum(weights * z_vals, -1)
    disp_map = 1.0 / torch.max(1e-10 * torch.ones_like(depth_map), depth_map / torch.sum(weights, -1))
    acc_map = torch.sum(weights, -1)
    if white_bkgd:
        rgb_map = rgb_map + (1.0 - acc_map[..., None])
    return rgb_map, disp_map, acc_map, weights, depth_map


def render_rays(ray_batch, network_fn, network_query_fn, N_samples, N_importance, network_fine, perturb=1.0):
    N_rays = ray_batch.shape[0]
    rays_o, rays_d = ray_batch[:, 0:3], ray_batch[:, 3:6]
    viewdirs = ray_batch[:, -3:]
    bounds = torch.reshape(ray_batch[..., 6:8], [-1, 1, 2])
    near, far = bounds[..., 0], bounds[..., 1]

    t_vals = torch.linspace(0.0, 1.0, steps=N_samples).to(device)
    z_vals = near * (1.0 - t_vals) + far * (t_vals)
    z_vals = z_vals.expand([N_rays, N_samples])

    if perturb > 0.0:
        # get intervals between samples
        mids = 0.5 * (z_vals[..., 1:] + z_vals[..., :-1])
        upper = torch.cat([mids, z_vals[..., -1:]], -1)
        lower = torch.cat([z_vals[..., :1], mids], -1)
        # stratified samples in those intervals
        t_rand = torch.rand(z_vals.shape).to(device)
        z_vals = lower + (upper - lower) * t_rand

    pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
    raw = network_query_fn(pts, viewdirs, network_fn)
    rgb_map_0, disp_map_0, acc_map_0, weights, depth_map = raw2outputs(raw, z_vals, rays_d)

    z_vals_mid = 0.5 * (z_vals[..., 1:] + z_vals[..., :-1])
    z_samples = sample_pdf(z_vals_mid, weights[..., 1:-1], N_importance)
    z_samples = z_samples.detach()
    z_vals, _ = torch.sort(torch.cat([z_vals, z_samples], -1), -1)
    pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
    raw = network_query_fn(pts, viewdirs, network_fine)
    rgb_map, disp_map, acc_map, weights, depth_map = raw2outputs(raw, z_vals, rays_d)

    ret = {"rgb_map": rgb_map, "disp_map": disp_map, "acc_map": acc_map}
    ret["rgb0"] = rgb_map_0
    ret["disp0"] = disp_map_0
    ret["acc0"] = acc_map_0
    ret["z_std"] = torch.std(z_samples, dim=-1, unbiased=False)
    return ret


def batchify_rays(rays_flat, chunk=1024 * 32, **kwargs):
    """Render rays in smaller minibatches to avoid OOM."""
    all_ret = {}
    for i in range(0, rays_flat.shape[0], chunk):
        ret = render_rays(rays_flat[i : i + chunk], **kwargs)
        for k in ret:
            if k not in all_ret:
                all_ret[k] = []
            all_ret[k].append(ret[k])
    return {k: torch.cat(all_ret[k], 0) for k in all_ret}


def render(rays, chunk, near, far, **kwargs):
    rays_o, rays_d = rays
    viewdirs = rays_d
    viewdirs = viewdirs / torch.norm(viewdirs, dim=-1, keepdim=True)
    viewdirs = torch.reshape(viewdirs, [-1, 3]).float()
    sh = rays_d.shape
    rays_o = torch.reshape(rays_o, [-1, 3]).float()
    rays_d = torch.reshape(rays_d, [-1, 3]).float()
    near, far = near * torch.ones_like(rays_d[..., :1]), far * torch.ones_like(rays_d[..., :1])
    rays = torch.cat([rays_o, rays_d, near, far, viewdirs], -1)
    all_ret = batchify_rays(rays, chunk, **kwargs)
    return {k: torch.reshape(v, list(sh[:-1]) + list(v.shape[1:])) for k, v in all_ret.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--N_rand", type=int, default=32 if SMALL else 1024)
    parser.add_argument("--N_samples", type=int, default=8 if SMALL else 64)
    parser.add_argument("--N_importance", type=int, default=8 if SMALL else 128)
    parser.add_argument("--lrate", type=float, default=5e-4)
    parser.add_argument("--lrate_decay", type=int, default=500)
    parser.add_argument("--i_print", type=int, default=100)
    parser.add_argument("--i_testset", type=int, default=2000)
    args = parser.parse_args()

    H = W = 40 if SMALL else 400
    focal = 0.5 * W / np.tan(0.5 * 0.69)
    K = np.array([[focal, 0, 0.5 * W], [0, focal, 0.5 * H], [0, 0, 1]])
    images, poses = load_balls(H, W, K, 4 if SMALL else 24)
    i_train, i_test = np.arange(len(images) - 1), len(images) - 1
    near, far = 2.0, 6.0

    embed, embeddirs = Embedder(10), Embedder(4)
    width = 32 if SMALL else 256
    model = NeRF(W=width, input_ch=embed.out_dim, input_ch_views=embeddirs.out_dim).to(device)
    model_fine = NeRF(W=width, input_ch=embed.out_dim, input_ch_views=embeddirs.out_dim).to(device)
    grad_vars = list(model.parameters()) + list(model_fine.parameters())
    optimizer = torch.optim.Adam(params=grad_vars, lr=args.lrate, betas=(0.9, 0.999))
    render_kwargs = {
        "network_query_fn": lambda inputs, viewdirs, network_fn: run_network(
            inputs, viewdirs, network_fn, embed_fn=embed.embed, embeddirs_fn=embeddirs.embed
        ),
        "N_samples": args.N_samples,
        "N_importance": args.N_importance,
        "network_fine": model_fine,
        "network_fn": model,
        "near": near,
        "far": far,
    }

    poses = torch.Tensor(poses).to(device)
    ends, t_start = [], None
    for i in trange(1, 200_000):
        # Random from one image
        img_i = np.random.choice(i_train)
        target = images[img_i]
        target = torch.Tensor(target).to(device)
        pose = poses[img_i, :3, :4]

        rays_o, rays_d = get_rays(H, W, K, pose)  # (H, W, 3), (H, W, 3)
        coords = torch.stack(
            torch.meshgrid(torch.linspace(0, H - 1, H), torch.linspace(0, W - 1, W), indexing="ij"), -1
        )
        coords = torch.reshape(coords, [-1, 2])  # (H * W, 2)
        select_inds = np.random.choice(coords.shape[0], size=[args.N_rand], replace=False)  # (N_rand,)
        select_coords = coords[select_inds].long()  # (N_rand, 2)
        rays_o = rays_o[select_coords[:, 0], select_coords[:, 1]]  # (N_rand, 3)
        rays_d = rays_d[select_coords[:, 0], select_coords[:, 1]]  # (N_rand, 3)
        target_s = target[select_coords[:, 0], select_coords[:, 1]]  # (N_rand, 3)

        #####  Core optimization loop  #####
        extras = render((rays_o, rays_d), chunk=1024 * 32, **render_kwargs)
        optimizer.zero_grad()
        img_loss = img2mse(extras["rgb_map"], target_s)
        loss = img_loss
        psnr = mse2psnr(img_loss)
        img_loss0 = img2mse(extras["rgb0"], target_s)
        loss = loss + img_loss0
        loss.backward()
        optimizer.step()

        ###   update learning rate   ###
        decay_rate = 0.1
        decay_steps = args.lrate_decay * 1000
        new_lrate = args.lrate * (decay_rate ** (i / decay_steps))
        for param_group in optimizer.param_groups:
            param_group["lr"] = new_lrate

        if i % args.i_print == 0:
            print(f"[TRAIN] Iter: {i} Loss: {loss.item()}  PSNR: {psnr.item()}")
        if i % args.i_testset == 0:
            with torch.no_grad():
                rays = get_rays(H, W, K, poses[i_test, :3, :4])
                rgb = render(rays, chunk=1024 * 4, **render_kwargs)["rgb_map"].cpu().numpy()
            print(f"[TEST] Iter: {i} PSNR: {-10 * np.log10(np.mean((rgb - images[i_test]) ** 2)):.2f}")

        ends.append(time.perf_counter())
        if len(ends) == 5:
            t_start = ends[-1]
        if args.steps and len(ends) >= args.steps:
            break
        if not args.steps and t_start and ends[-1] - t_start > args.seconds:
            break

    gaps = np.diff(ends)
    print(f"\nmedian step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
